"""Assistants, threads and messages as OpenAI's objects."""

from typing import Annotated, Literal

from corral.control.v1 import assistant_pb2, item_pb2, message_pb2, thread_pb2
from typing_extensions import TypedDict

from dialects.openai.assistants.tools import (
    AnswerFormatObject,
    ToolObject,
    ToolResources,
    format_object,
    resources_object,
    tool_objects,
)
from dialects.openai.shared.objects import enum_name, incomplete_details
from dialects.shared.wire import From, each, seconds, writer


class Assistant(TypedDict):
    id: str
    object: Literal["assistant"]
    created_at: Annotated[int, seconds("create_time")]
    name: str | None
    description: str | None
    model: str
    instructions: str | None
    tools: Annotated[list[ToolObject], From(write=tool_objects)]
    tool_resources: Annotated[ToolResources, From(write=resources_object)]
    metadata: dict[str, str]
    temperature: Annotated[float | None, From("options.sampling.temperature")]
    top_p: Annotated[float | None, From("options.sampling.top_p")]
    reasoning_effort: str | None
    response_format: Annotated[AnswerFormatObject, From(".", format_object)]
    etag: str


class Thread(TypedDict):
    id: str
    object: Literal["thread"]
    created_at: Annotated[int, seconds("create_time")]
    metadata: dict[str, str]
    tool_resources: Annotated[ToolResources, From(write=resources_object)]
    etag: str


class CitedFile(TypedDict):
    """The file of a citation."""

    file_id: str


class FileCitation(TypedDict):
    type: Literal["file_citation"]
    text: Annotated[str, From("marker")]
    start_index: Annotated[int, From("start")]
    end_index: Annotated[int, From("end")]
    file_citation: Annotated[CitedFile, From(".")]


class TextValue(TypedDict):
    value: str
    annotations: list[FileCitation]


class TextContent(TypedDict):
    type: Literal["text"]
    text: TextValue


class RefusalContent(TypedDict):
    type: Literal["refusal"]
    refusal: str


class StoredImage(TypedDict):
    file_id: str
    detail: str


class ImageFileContent(TypedDict):
    type: Literal["image_file"]
    image_file: StoredImage


class LinkedImage(TypedDict):
    url: str
    detail: str


class ImageUrlContent(TypedDict):
    type: Literal["image_url"]
    image_url: LinkedImage


MessageStatus = Literal["in_progress", "completed", "incomplete"]
MessageContent = TextContent | RefusalContent | ImageFileContent | ImageUrlContent


def content_object(part: item_pb2.ItemPart) -> MessageContent:
    kind = part.WhichOneof("part")
    if kind == "refusal":
        return {"type": "refusal", "refusal": part.refusal}
    if kind == "image":
        image = part.image
        detail = image.detail or "auto"
        if image.file_id:
            return {
                "type": "image_file",
                "image_file": {"file_id": image.file_id, "detail": detail},
            }
        return {"type": "image_url", "image_url": {"url": image.url, "detail": detail}}
    annotations = [citation_object(citation) for citation in part.text.citations]
    return {"type": "text", "text": {"value": part.text.text, "annotations": annotations}}


class FileSearchType(TypedDict):
    """file_search, by its type."""

    type: Literal["file_search"]


def _attachment_tool(tool: message_pb2.AttachmentTool) -> dict[str, str]:
    return {"type": enum_name(message_pb2.AttachmentTool.Name(tool), "ATTACHMENT_TOOL_")}


class Attachment(TypedDict):
    """A file attached to a message."""

    file_id: str
    tools: Annotated[list[FileSearchType], From(write=each(_attachment_tool))]


class IncompleteMessage(TypedDict):
    """Why a message is incomplete."""

    reason: Literal["content_filter", "max_tokens", "run_cancelled", "run_expired", "run_failed"]


class ThreadMessage(TypedDict):
    id: str
    object: Literal["thread.message"]
    created_at: Annotated[int, seconds("create_time")]
    thread_id: str
    status: Annotated[MessageStatus, From("state")]
    incomplete_details: Annotated[IncompleteMessage | None, From(".", incomplete_details)]
    completed_at: Annotated[int | None, seconds("completed_time")]
    incomplete_at: Annotated[int | None, seconds("incomplete_time")]
    role: Literal["user", "assistant", "system", "developer"]
    content: Annotated[list[MessageContent], From("parts", each(content_object))]
    assistant_id: str | None
    run_id: str | None
    attachments: list[Attachment]
    metadata: dict[str, str]


assistant_object = writer(assistant_pb2.Assistant, Assistant)
thread_object = writer(thread_pb2.Thread, Thread)
message_object = writer(message_pb2.Message, ThreadMessage)
citation_object = writer(item_pb2.FileCitation, FileCitation)
