"""Requests and objects of conversations, and lists of items."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from corral.control.v1 import conversation_pb2, item_pb2, listing_pb2
from corral.control.v1 import conversation_service_pb2 as service_pb
from pydantic import Field

from openai_wire.responses.input_items import items_from
from openai_wire.responses.output_items import item_objects
from openai_wire.responses.requests import includes_from
from openai_wire.shared.fields import WireModel, number_of, validated, without_neutral
from svc_kit.errors import InvalidField

Json = dict[str, Any]
MAX_PAGE = 100


class ConversationBody(WireModel):
    """How a conversation begins."""

    items: list[dict[str, Any]] | None = Field(None, description="At most 20 items.")
    metadata: dict[str, str] | None = Field(None, description="At most 16 pairs.")


class ConversationUpdateBody(WireModel):
    """What is attached to a conversation, in place of what was."""

    metadata: dict[str, str] | None = Field(None, description="At most 16 pairs.")


class NewItemsBody(WireModel):
    """What is added to a conversation."""

    items: list[dict[str, Any]] = Field(description="1 to 20 items.")


class ItemListQuery(WireModel):
    """The query of a list of items."""

    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] | None = None
    after: str | None = None
    order: Literal["asc", "desc"] | None = None


def create_conversation_request(
    fields: Mapping[str, Any], request_id: str
) -> service_pb.CreateConversationRequest:
    """The conversation that a body asks for. Raises DomainErrors with OpenAI's field names."""
    body = validated(ConversationBody, without_neutral(fields, {}))
    return service_pb.CreateConversationRequest(
        items=items_from(body.items or (), "items"),
        metadata=body.metadata or {},
        request_id=request_id,
    )


def update_conversation_request(
    conversation_id: str, fields: Mapping[str, Any]
) -> service_pb.UpdateConversationRequest:
    """The change that a body asks for. Raises DomainErrors with OpenAI's field names."""
    body = validated(ConversationUpdateBody, without_neutral(fields, {}))
    return service_pb.UpdateConversationRequest(
        conversation_id=conversation_id, metadata=body.metadata or {}
    )


def create_items_request(
    conversation_id: str, fields: Mapping[str, Any], include: Sequence[str], request_id: str
) -> service_pb.CreateConversationItemsRequest:
    """The items that a body adds. Raises DomainErrors with OpenAI's field names."""
    body = validated(NewItemsBody, without_neutral(fields, {}))
    return service_pb.CreateConversationItemsRequest(
        conversation_id=conversation_id,
        items=items_from(body.items, "items"),
        include=includes_from(include),
        request_id=request_id,
    )


def item_page(query: Mapping[str, str], include: Sequence[str]) -> Json:
    """The page that a query asks for, as fields of a request. Others of its parameters are
    ignored. Raises DomainErrors with OpenAI's field names."""
    known: Json = {name: query[name] for name in ItemListQuery.model_fields if query.get(name)}
    if "limit" in known:
        known["limit"] = number_of(known["limit"])
    request = validated(ItemListQuery, known)
    return {
        "page_size": request.limit or 0,
        "after": request.after or "",
        "order": listing_pb2.LIST_ORDER_OLDEST_FIRST
        if request.order == "asc"
        else listing_pb2.LIST_ORDER_NEWEST_FIRST,
        "include": includes_from(include),
    }


def starting_after(query: Mapping[str, str]) -> int | None:
    """The number of the last event that a reader has seen; None: none. Raises InvalidField."""
    text = query.get("starting_after")
    if not text:
        return None
    number = number_of(text)
    if isinstance(number, str):
        raise InvalidField(field="starting_after", problem="it is not the number of an event")
    return number


def conversation_object(conversation: conversation_pb2.Conversation) -> Json:
    """A conversation."""
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": conversation.create_time.seconds,
        "metadata": dict(conversation.metadata),
    }


def item_list(items: Sequence[item_pb2.Item], *, has_more: bool) -> Json:
    """A page of items."""
    return {
        "object": "list",
        "data": item_objects(items),
        "first_id": items[0].id if items else None,
        "last_id": items[-1].id if items else None,
        "has_more": has_more,
    }
