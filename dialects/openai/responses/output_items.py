"""Items and content parts as objects. Absent optional fields are omitted instead of null."""

from collections.abc import Callable, Iterable
from typing import Any, Final

import orjson
from corral.control.v1 import item_pb2

from dialects.openai.responses.namespaces import split_name
from dialects.openai.shared.objects import Json, enum_name
from dialects.shared.json_body import answer_value
from dialects.shared.media import is_address

_JSON_NAMES: Final = {
    "arguments_json": "arguments",
    "problem": "error",
    "sealed": "encrypted_content",
}
_NULLABLE: Final = frozenset(("approval_request_id", "problem", "reason"))
_STATUSES: Final = {
    item_pb2.Item.STATUS_UNSPECIFIED: "completed",
    item_pb2.Item.STATUS_IN_PROGRESS: "in_progress",
    item_pb2.Item.STATUS_COMPLETED: "completed",
    item_pb2.Item.STATUS_INCOMPLETE: "incomplete",
}


def item_object(item: item_pb2.Item) -> Json:
    """An item as JSON. An item without content is a reference."""
    kind = item.WhichOneof("content")
    if kind is None:
        return {"type": "item_reference", "id": item.id}
    return {"id": item.id, "type": kind} | _WRITERS[kind](item)


def item_objects(items: Iterable[item_pb2.Item]) -> list[Json]:
    """Items as JSON, in order."""
    return [item_object(item) for item in items]


def part_object(part: item_pb2.ItemPart, *, is_output: bool) -> Json:
    """A content part as JSON: output of the assistant, or input."""
    match part.WhichOneof("part"):
        case "refusal":
            return {"type": "refusal", "refusal": part.refusal}
        case "image":
            image: Json = {"type": "input_image", "detail": part.image.detail or "auto"}
            if part.image.file_id:
                return image | {"file_id": part.image.file_id}
            return image | {"image_url": part.image.url or None}
        case "file":
            source = "file_url" if is_address(part.file.data_url) else "file_data"
            names = {"file_id": "file_id", "data_url": source, "filename": "filename"}
            fields = {name: getattr(part.file, field) for field, name in names.items()}
            return {"type": "input_file"} | {name: text for name, text in fields.items() if text}
        case _:
            return _text_object(part.text, is_output=is_output)


def citation_object(citation: item_pb2.FileCitation) -> Json:
    """A citation of a file."""
    return {
        "type": "file_citation",
        "file_id": citation.file_id,
        "filename": citation.filename,
        "index": citation.start,
    }


def logprob_objects(logprobs: Iterable[item_pb2.ItemLogprob]) -> list[Json]:
    """Tokens with their log probabilities and alternatives."""
    return [
        _token(logprob) | {"top_logprobs": [_token(each) for each in logprob.top]}
        for logprob in logprobs
    ]


def _text_object(text: item_pb2.TextPart, *, is_output: bool) -> Json:
    if not is_output:
        return {"type": "input_text", "text": text.text}
    return {
        "type": "output_text",
        "text": text.text,
        "annotations": [citation_object(citation) for citation in text.citations],
        "logprobs": logprob_objects(text.logprobs),
    }


def _token(logprob: item_pb2.ItemLogprob) -> Json:
    return {"token": logprob.token, "logprob": logprob.logprob, "bytes": list(logprob.raw)}


def _status(item: item_pb2.Item) -> Json:
    return {"status": _STATUSES[item.status]}


def _message(item: item_pb2.Item) -> Json:
    role = item.message.role
    is_output = role == item_pb2.ITEM_ROLE_ASSISTANT
    content = [part_object(part, is_output=is_output) for part in item.message.parts]
    return _status(item) | {
        "role": enum_name(item_pb2.ItemRole.Name(role), "ITEM_ROLE_"),
        "content": content,
    }


def _fields(message: Any) -> Json:
    """The fields of a message by their names in JSON; those that may be null are so if empty."""
    written: Json = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.has_presence and not message.HasField(field.name):
            value = None
        name = _JSON_NAMES.get(field.name, field.name)
        written[name] = value or None if field.name in _NULLABLE else value
    return written


def _call(item: item_pb2.Item, call: Any) -> Json:
    return _status(item) | _fields(call) | split_name(call.name)


def _output(item: item_pb2.ToolOutputItem) -> Json:
    """A single text is written as a string instead of a list of parts."""
    parts = item.output
    output: object = [part_object(part, is_output=False) for part in parts]
    if len(parts) == 1 and parts[0].WhichOneof("part") == "text":
        output = parts[0].text.text
    return {"call_id": item.call_id, "output": output}


def _reasoning(item: item_pb2.Item) -> Json:
    """The reasoning text is returned as its summary, which all clients support."""
    text, sealed = item.reasoning.text, item.reasoning.sealed
    summary = [{"type": "summary_text", "text": text}] if text else []
    return {"summary": summary} | ({"encrypted_content": sealed} if sealed else {})


def _file_search_call(item: item_pb2.Item) -> Json:
    call = item.file_search_call
    results = [
        {
            "file_id": result.file_id,
            "filename": result.filename,
            "score": result.score,
            "text": result.text,
            "attributes": _parse_json(result.attributes_json, {}),
        }
        for result in call.results
    ]
    status = "failed" if call.problem else _STATUSES[item.status]
    return {"status": status, "queries": list(call.queries), "results": results or None}


def _mcp_list_tools(item: item_pb2.Item) -> Json:
    content = item.mcp_list_tools
    tools = [
        {
            "name": tool.name,
            "description": tool.description or None,
            "input_schema": _parse_json(tool.input_schema_json, {}),
            "annotations": _parse_json(tool.annotations_json, None),
        }
        for tool in content.tools
    ]
    return {"server_label": content.server_label, "tools": tools, "error": content.problem or None}


def _mcp_call(item: item_pb2.Item) -> Json:
    status = "failed" if item.mcp_call.problem else _STATUSES[item.status]
    return {"status": status} | _fields(item.mcp_call)


def _parse_json(text: str, default: object) -> object:
    """Parse JSON of third parties. Returns `default` if it is invalid."""
    try:
        return answer_value(text)
    except orjson.JSONDecodeError:
        return default


_WRITERS: Final[dict[str, Callable[[item_pb2.Item], Json]]] = {
    "message": _message,
    "function_call": lambda item: _call(item, item.function_call),
    "function_call_output": lambda item: _status(item) | _output(item.function_call_output),
    "custom_tool_call": lambda item: _call(item, item.custom_tool_call),
    "custom_tool_call_output": lambda item: _status(item) | _output(item.custom_tool_call_output),
    "reasoning": _reasoning,
    "compaction": lambda item: _fields(item.compaction),
    "file_search_call": _file_search_call,
    "mcp_list_tools": _mcp_list_tools,
    "mcp_call": _mcp_call,
    "mcp_approval_request": lambda item: _fields(item.mcp_approval_request),
    "mcp_approval_response": lambda item: _fields(item.mcp_approval_response),
}
"""Converters by field of Item, which equals the `type` of the JSON."""
