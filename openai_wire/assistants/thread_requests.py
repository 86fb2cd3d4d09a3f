"""Request bodies of threads and messages, converted to protos."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from corral.control.v1 import item_pb2, message_pb2, thread_pb2
from corral.control.v1 import message_service_pb2 as message_service
from corral.control.v1 import thread_service_pb2 as thread_service
from google.protobuf.field_mask_pb2 import FieldMask
from pydantic import Field, Tag

from openai_wire.assistants.tools import ToolResourcesBody, new_stores_from, resources_from
from openai_wire.shared.fields import BY_KIND, WireModel, validated, without_neutral
from openai_wire.shared.pagination import PageQuery
from svc_kit.errors import MissingField, UnsupportedValue

Detail = Literal["auto", "low", "high"]
_ROLES: Final = {
    "user": item_pb2.ITEM_ROLE_USER,
    "assistant": item_pb2.ITEM_ROLE_ASSISTANT,
}


class ImageUrl(WireModel):
    """A picture by its URL."""

    url: str = Field(min_length=1, description="A data URL, or one of a host that is allowed.")
    detail: Detail | None = None


class ImageFile(WireModel):
    """A picture in a file."""

    file_id: str = Field(min_length=1)
    detail: Detail | None = None


class MessagePart(WireModel):
    """A piece of a message."""

    type: Literal["text", "image_url", "image_file"]
    text: str | None = None
    image_url: ImageUrl | None = None
    image_file: ImageFile | None = None


class AttachmentToolBody(WireModel):
    """A tool that a file is given to."""

    type: Literal["file_search", "code_interpreter"]


class AttachmentBody(WireModel):
    """A file that comes with a message."""

    file_id: str = Field(min_length=1)
    tools: list[AttachmentToolBody] | None = None


class MessageBody(WireModel):
    """A new message."""

    role: Literal["user", "assistant"]
    content: Annotated[
        Annotated[str, Tag("~string")] | Annotated[list[MessagePart], Tag("~array")], BY_KIND
    ] = Field(description="A text, or its parts.")
    attachments: list[AttachmentBody] | None = Field(None, description="For file_search.")
    metadata: dict[str, str] | None = Field(None, description="At most 16 pairs.")


class MetadataBody(WireModel):
    """What its owner attaches to an object, in place of what was there."""

    metadata: dict[str, str] | None = Field(None, description="At most 16 pairs.")


class ThreadUpdateBody(MetadataBody):
    """What is different of a thread."""

    tool_resources: ToolResourcesBody | None = None
    etag: str | None = Field(None, description="The etag that the thread must still have.")


class ThreadBody(MetadataBody):
    """A new thread."""

    messages: list[MessageBody] | None = Field(None, description="At most 1000.")
    tool_resources: ToolResourcesBody | None = None


class MessageListQuery(PageQuery):
    """The query of a list of messages."""

    run_id: str | None = None


def create_thread_request(
    fields: Mapping[str, Any], request_id: str
) -> thread_service.CreateThreadRequest:
    """The thread that a body describes. Raises DomainErrors with the body's field names."""
    body = validated(ThreadBody, without_neutral(fields, {}))
    return thread_service.CreateThreadRequest(
        thread=thread_from(body, makes_stores=True),
        new_vector_stores=new_stores_from(body.tool_resources),
        messages=messages_from(body.messages or ()),
        request_id=request_id,
    )


def update_thread_request(
    thread_id: str, fields: Mapping[str, Any]
) -> thread_service.UpdateThreadRequest:
    """What a body changes. Raises DomainErrors with the body's field names."""
    body = validated(ThreadUpdateBody, without_neutral(fields, {}))
    changes = thread_pb2.Thread(id=thread_id, etag=body.etag or "", metadata=body.metadata or {})
    if body.tool_resources is not None:
        changes.tool_resources.CopyFrom(resources_from(body.tool_resources))
    named = [name for name in ("metadata", "tool_resources") if name in fields]
    return thread_service.UpdateThreadRequest(thread=changes, update_mask=FieldMask(paths=named))


def create_message_request(
    thread_id: str, fields: Mapping[str, Any], request_id: str
) -> message_service.CreateMessageRequest:
    """The message that a body describes. Raises DomainErrors with the body's field names."""
    body = validated(MessageBody, without_neutral(fields, {}))
    return message_service.CreateMessageRequest(
        thread_id=thread_id, message=_message(body, ""), request_id=request_id
    )


def update_message_request(
    thread_id: str, message_id: str, fields: Mapping[str, Any]
) -> message_service.UpdateMessageRequest:
    """What a body changes. Raises DomainErrors with the body's field names."""
    body = validated(MetadataBody, without_neutral(fields, {}))
    changes = message_pb2.Message(id=message_id, thread_id=thread_id, metadata=body.metadata or {})
    named = ["metadata"] if "metadata" in fields else []
    return message_service.UpdateMessageRequest(message=changes, update_mask=FieldMask(paths=named))


def thread_from(body: ThreadBody, *, makes_stores: bool = False) -> thread_pb2.Thread:
    """Convert the body of a thread. Raises UnsupportedField."""
    return thread_pb2.Thread(
        tool_resources=resources_from(body.tool_resources, makes_stores=makes_stores),
        metadata=body.metadata or {},
    )


def messages_from(
    messages: Sequence[MessageBody], field: str = "messages"
) -> list[message_pb2.NewMessage]:
    """Messages that a body adds. Raises MissingField or UnsupportedValue."""
    return [_message(message, f"{field}[{index}].") for index, message in enumerate(messages)]


def _message(body: MessageBody, path: str) -> message_pb2.NewMessage:
    parts = body.content
    if isinstance(parts, str):
        parts = [MessagePart(type="text", text=parts)]
    return message_pb2.NewMessage(
        role=_ROLES[body.role],
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
