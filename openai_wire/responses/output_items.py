"""Items and content parts as objects. Absent optional fields are omitted instead of null."""

from collections.abc import Callable, Iterable
from typing import Final

import orjson
from corral.control.v1 import item_pb2

from openai_wire.shared.objects import Json

_ROLES: Final = {
    item_pb2.ITEM_ROLE_USER: "user",
    item_pb2.ITEM_ROLE_ASSISTANT: "assistant",
    item_pb2.ITEM_ROLE_SYSTEM: "system",
    item_pb2.ITEM_ROLE_DEVELOPER: "developer",
}
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
            names = {"file_id": "file_id", "data_url": "file_data", "filename": "filename"}
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
    return _status(item) | {"role": _ROLES[role], "content": content}


def _function_call(item: item_pb2.Item) -> Json:
    call = item.function_call
    return _status(item) | {
        "call_id": call.call_id,
        "name": call.name,
        "arguments": call.arguments_json,
    }


def _custom_tool_call(item: item_pb2.Item) -> Json:
    call = item.custom_tool_call
    return _status(item) | {"call_id": call.call_id, "name": call.name, "input": call.input}


def _function_call_output(item: item_pb2.Item) -> Json:
    return _status(item) | _output(item.function_call_output)


def _custom_tool_call_output(item: item_pb2.Item) -> Json:
    return _status(item) | _output(item.custom_tool_call_output)


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


def _compaction(item: item_pb2.Item) -> Json:
    return {"encrypted_content": item.compaction.sealed}


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
    call = item.mcp_call
    return {
        "status": "failed" if call.problem else _STATUSES[item.status],
        "server_label": call.server_label,
        "name": call.name,
        "arguments": call.arguments_json,
        "output": call.output if call.HasField("output") else None,
        "error": call.problem or None,
        "approval_request_id": call.approval_request_id or None,
    }


def _mcp_approval_request(item: item_pb2.Item) -> Json:
    request = item.mcp_approval_request
    return {
        "server_label": request.server_label,
        "name": request.name,
        "arguments": request.arguments_json,
    }


def _mcp_approval_response(item: item_pb2.Item) -> Json:
    response = item.mcp_approval_response
    return {
        "approval_request_id": response.approval_request_id,
        "approve": response.approve,
        "reason": response.reason or None,
    }


def _parse_json(text: str, default: object) -> object:
    """Parse JSON of third parties. Returns `default` if it is invalid."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return default


_WRITERS: Final[dict[str, Callable[[item_pb2.Item], Json]]] = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
    "custom_tool_call": _custom_tool_call,
    "custom_tool_call_output": _custom_tool_call_output,
    "reasoning": _reasoning,
    "compaction": _compaction,
    "file_search_call": _file_search_call,
    "mcp_list_tools": _mcp_list_tools,
    "mcp_call": _mcp_call,
    "mcp_approval_request": _mcp_approval_request,
    "mcp_approval_response": _mcp_approval_response,
}
"""Converters by field of Item, which equals the `type` of the JSON."""
