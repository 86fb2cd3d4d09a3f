"""Request bodies and objects of conversations, and queries of items and events."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from corral.control.v1 import conversation_pb2
from corral.control.v1 import conversation_service_pb2 as service_pb
from pydantic import Field
from typing_extensions import TypedDict

from dialects.openai.responses.input_items import items_to_proto
from dialects.openai.responses.requests import parse_includes
from dialects.openai.shared.objects import Json
from dialects.openai.shared.pagination import ListQuery, parse_page_fields
from dialects.shared.fields import (
    WireModel,
    parse_event_number,
    update_mask,
    validate,
)
from dialects.shared.wire import seconds, writer


class ConversationBody(WireModel):
    items: list[dict[str, Any]] | None = Field(None, description="At most 20 items.")
    metadata: dict[str, str] | None = Field(None, description="At most 16 pairs of strings.")


class ConversationUpdateBody(WireModel):
    """New metadata of a conversation; replaces the existing metadata."""

    metadata: dict[str, str] | None = Field(None, description="At most 16 pairs of strings.")


class NewItemsBody(WireModel):
    items: list[dict[str, Any]] = Field(description="1 to 20 items.")


def create_conversation_request(
    fields: Mapping[str, Any], request_id: str
) -> service_pb.CreateConversationRequest:
    """Convert the body of a new conversation. Raises DomainErrors with OpenAI's field names."""
    body = validate(ConversationBody, fields)
    return service_pb.CreateConversationRequest(
        items=items_to_proto(body.items or (), "items"),
        metadata=body.metadata or {},
        request_id=request_id,
    )


def update_conversation_request(
    conversation_id: str, fields: Mapping[str, Any]
) -> service_pb.UpdateConversationRequest:
    """Convert the body of an update. Raises DomainErrors with OpenAI's field names."""
    body = validate(ConversationUpdateBody, fields)
    return service_pb.UpdateConversationRequest(
        conversation_id=conversation_id,
        metadata=body.metadata or {},
        update_mask=update_mask(fields, "metadata"),
    )


def create_items_request(
    conversation_id: str, fields: Mapping[str, Any], include: Sequence[str], request_id: str
) -> service_pb.CreateConversationItemsRequest:
    """Convert the body of new items. Raises DomainErrors with OpenAI's field names."""
    body = validate(NewItemsBody, fields)
    return service_pb.CreateConversationItemsRequest(
        conversation_id=conversation_id,
        items=items_to_proto(body.items, "items", needs_one=True),
        include=parse_includes(include),
        request_id=request_id,
    )


def parse_item_query(query: Mapping[str, str], include: Sequence[str]) -> Json:
    """Convert the query of a list of items to fields of its request. Raises DomainErrors with
    OpenAI's field names."""
    return {
        **parse_page_fields(query, ListQuery),
        "include": parse_includes(include),
    }


def parse_starting_after(query: Mapping[str, str]) -> int | None:
    """The number of the last event that the client received, if any. Raises InvalidField."""
    text = query.get("starting_after")
    return parse_event_number(text) if text else None


class Conversation(TypedDict):
    id: str
    object: Literal["conversation"]
    created_at: Annotated[int, seconds("create_time")]
    metadata: dict[str, str]


conversation_object = writer(conversation_pb2.Conversation, Conversation)
