"""Request bodies of threads and messages, converted to protos."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from corral.control.v1 import item_pb2, message_pb2, thread_pb2
from corral.control.v1 import message_service_pb2 as message_service
from corral.control.v1 import thread_service_pb2 as thread_service
from pydantic import Field, Tag

from dialects.openai.assistants.tools import (
    ToolResourcesBody,
    new_stores_to_proto,
    resources_to_proto,
)
from dialects.openai.shared.pagination import PageQuery
from dialects.shared.fields import BY_KIND, WireModel, update_mask, validate
from dialects.shared.media import scheme_of
from svc_kit.errors import MissingField, UnsupportedValue
from svc_kit.rpc.field_limits import limit

Detail = Literal["auto", "low", "high"]


class MessageImageUrl(WireModel):
    url: str = Field(min_length=1, description="A data URL, or a URL of an allowed host.")
    detail: Detail | None = None


class ImageFile(WireModel):
    file_id: str = Field(min_length=1)
    detail: Detail | None = None


class MessagePart(WireModel):
    type: Literal["text", "image_url", "image_file"]
    text: str | None = None
    image_url: MessageImageUrl | None = None
    image_file: ImageFile | None = None


class AttachmentToolBody(WireModel):
    """A tool that may use an attachment."""

    type: Literal["file_search", "code_interpreter"]


class AttachmentBody(WireModel):
    """A file attached to a message."""

    file_id: str = Field(min_length=1)
    tools: list[AttachmentToolBody] | None = None


class MessageBody(WireModel):
    role: Literal["user", "assistant"]
    content: Annotated[
        Annotated[str, Tag("~string")] | Annotated[list[MessagePart], Tag("~array")], BY_KIND
    ] = Field(description="A text, or a list of parts.")
    attachments: list[AttachmentBody] | None = Field(None, description="For file_search.")
    metadata: dict[str, str] | None = Field(None, description="At most 16 pairs of strings.")


class MetadataBody(WireModel):
    """New metadata of an object; replaces the existing metadata."""

    metadata: dict[str, str] | None = Field(None, description="At most 16 pairs of strings.")


class ThreadUpdateBody(MetadataBody):
    """Changes of a thread."""

    tool_resources: ToolResourcesBody | None = None
    etag: str | None = Field(None, description="Update only if the thread has this etag.")


class ThreadBody(MetadataBody):
    messages: (
        Annotated[list[MessageBody], limit(thread_service.CreateThreadRequest, "messages")] | None
    ) = None
    tool_resources: ToolResourcesBody | None = None


class MessageListQuery(PageQuery):
    """The query of a list of messages."""

    run_id: str | None = None


def create_thread_request(
    fields: Mapping[str, Any], request_id: str
) -> thread_service.CreateThreadRequest:
    """Convert the body of a new thread. Raises DomainErrors with the body's field names."""
    body = validate(ThreadBody, fields)
    return thread_service.CreateThreadRequest(
        thread=thread_to_proto(body, allow_new_stores=True),
        new_vector_stores=new_stores_to_proto(body.tool_resources),
        messages=messages_to_proto(body.messages or ()),
        request_id=request_id,
    )


def update_thread_request(
    thread_id: str, fields: Mapping[str, Any]
) -> thread_service.UpdateThreadRequest:
    """Convert the body of an update. Raises DomainErrors with the body's field names."""
    body = validate(ThreadUpdateBody, fields)
    changes = thread_pb2.Thread(id=thread_id, etag=body.etag or "", metadata=body.metadata or {})
    if body.tool_resources is not None:
        changes.tool_resources.CopyFrom(resources_to_proto(body.tool_resources))
    return thread_service.UpdateThreadRequest(
        thread=changes, update_mask=update_mask(fields, "metadata", "tool_resources")
    )


def create_message_request(
    thread_id: str, fields: Mapping[str, Any], request_id: str
) -> message_service.CreateMessageRequest:
    """Convert the body of a new message. Raises DomainErrors with the body's field names."""
    body = validate(MessageBody, fields)
    return message_service.CreateMessageRequest(
        thread_id=thread_id, message=_message(body, ""), request_id=request_id
    )


def update_message_request(
    thread_id: str, message_id: str, fields: Mapping[str, Any]
) -> message_service.UpdateMessageRequest:
    """Convert the body of an update. Raises DomainErrors with the body's field names."""
    body = validate(MetadataBody, fields)
    changes = message_pb2.Message(id=message_id, thread_id=thread_id, metadata=body.metadata or {})
    return message_service.UpdateMessageRequest(
        message=changes, update_mask=update_mask(fields, "metadata")
    )


def thread_to_proto(body: ThreadBody, *, allow_new_stores: bool = False) -> thread_pb2.Thread:
    """Convert the body of a thread. Raises UnsupportedField."""
    return thread_pb2.Thread(
        tool_resources=resources_to_proto(body.tool_resources, allow_new_stores=allow_new_stores),
        metadata=body.metadata or {},
    )


def messages_to_proto(
    messages: Sequence[MessageBody], field: str = "messages"
) -> list[message_pb2.NewMessage]:
    """Convert messages at path `field` of a body. Raises MissingField or UnsupportedValue."""
    return [_message(message, f"{field}[{index}].") for index, message in enumerate(messages)]


def _message(body: MessageBody, path: str) -> message_pb2.NewMessage:
    parts = body.content
    if isinstance(parts, str):
        parts = [MessagePart(type="text", text=parts)]
    return message_pb2.NewMessage(
        role=f"ITEM_ROLE_{body.role.upper()}",
        parts=[_part(part, f"{path}content[{index}]") for index, part in enumerate(parts)],
        attachments=[
            _attachment(attachment, f"{path}attachments[{index}]")
            for index, attachment in enumerate(body.attachments or ())
        ],
        metadata=body.metadata or {},
    )


def _part(part: MessagePart, path: str) -> item_pb2.ItemPart:
    if part.type == "text" and part.text is not None:
        return item_pb2.ItemPart(text=item_pb2.TextPart(text=part.text))
    if part.type == "image_url" and part.image_url is not None:
        url = part.image_url
        scheme_of(f"{path}.image_url.url", url.url)
        return item_pb2.ItemPart(image=item_pb2.ImagePart(url=url.url, detail=url.detail or ""))
    if part.type == "image_file" and part.image_file is not None:
        file = part.image_file
        image = item_pb2.ImagePart(file_id=file.file_id, detail=file.detail or "")
        return item_pb2.ItemPart(image=image)
    raise MissingField(field=f"{path}.{part.type}")


def _attachment(attachment: AttachmentBody, path: str) -> message_pb2.Attachment:
    for index, tool in enumerate(attachment.tools or ()):
        if tool.type != "file_search":
            raise UnsupportedValue(field=f"{path}.tools[{index}].type", value=tool.type)
    return message_pb2.Attachment(
        file_id=attachment.file_id,
        tools=[message_pb2.ATTACHMENT_TOOL_FILE_SEARCH] if attachment.tools else [],
    )
