"""Assistants, threads and messages as OpenAI's objects."""

from corral.control.v1 import assistant_pb2, item_pb2, message_pb2, thread_pb2

from dialects.openai.assistants.tools import format_object, resources_object, tool_objects
from dialects.openai.shared.objects import (
    Json,
    enum_name,
    incomplete_details,
    optional_float,
    optional_seconds,
    state_name,
)


def assistant_object(assistant: assistant_pb2.Assistant) -> Json:
    """An assistant."""
    sampling = assistant.options.sampling
    return {
        "id": assistant.id,
        "object": "assistant",
        "created_at": assistant.create_time.seconds,
        "name": assistant.name or None,
        "description": assistant.description or None,
        "model": assistant.model,
        "instructions": assistant.instructions or None,
        "tools": tool_objects(assistant.tools),
        "tool_resources": resources_object(assistant.tool_resources),
        "metadata": dict(assistant.metadata),
        "temperature": optional_float(sampling, "temperature"),
        "top_p": optional_float(sampling, "top_p"),
        "reasoning_effort": assistant.reasoning_effort or None,
        "response_format": format_object(assistant),
        "etag": assistant.etag,
    }


def thread_object(thread: thread_pb2.Thread) -> Json:
    """A thread."""
    return {
        "id": thread.id,
        "object": "thread",
        "created_at": thread.create_time.seconds,
        "metadata": dict(thread.metadata),
        "tool_resources": resources_object(thread.tool_resources),
        "etag": thread.etag,
    }


def message_object(message: message_pb2.Message) -> Json:
    """A message."""
    return {
        "id": message.id,
        "object": "thread.message",
        "created_at": message.create_time.seconds,
        "thread_id": message.thread_id,
        "status": state_name(message),
        "incomplete_details": incomplete_details(message),
        "completed_at": optional_seconds(message, "completed_time"),
        "incomplete_at": optional_seconds(message, "incomplete_time"),
        "role": enum_name(item_pb2.ItemRole.Name(message.role), "ITEM_ROLE_"),
        "content": [content_object(part) for part in message.parts],
        "assistant_id": message.assistant_id or None,
        "run_id": message.run_id or None,
        "attachments": [_attachment_object(attachment) for attachment in message.attachments],
        "metadata": dict(message.metadata),
    }


def content_object(part: item_pb2.ItemPart) -> Json:
    """A part of a message."""
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


def citation_object(citation: item_pb2.FileCitation) -> Json:
    """A citation of a file."""
    return {
        "type": "file_citation",
        "text": citation.marker,
        "start_index": citation.start,
        "end_index": citation.end,
        "file_citation": {"file_id": citation.file_id},
    }


def _attachment_object(attachment: message_pb2.Attachment) -> Json:
    tools = [
        {"type": enum_name(message_pb2.AttachmentTool.Name(tool), "ATTACHMENT_TOOL_")}
        for tool in attachment.tools
    ]
    return {"file_id": attachment.file_id, "tools": tools}
