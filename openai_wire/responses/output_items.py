"""Items and parts as objects; absent fields are left out, not null."""

from collections.abc import Callable, Iterable
from typing import Any, Final

import orjson
from corral.control.v1 import item_pb2

Json = dict[str, Any]
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
    """An item; one without content is a reference."""
    kind = item.WhichOneof("content")
    if kind is None:
        return {"type": "item_reference", "id": item.id}
    return {"id": item.id, "type": kind} | _WRITERS[kind](item)


def item_objects(items: Iterable[item_pb2.Item]) -> list[Json]:
    """Items, in order."""
    return [item_object(item) for item in items]


def part_object(part: item_pb2.ItemPart, *, is_output: bool) -> Json:
    """A part of what the assistant wrote, or of what it was given."""
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
            given = {name: getattr(part.file, field) for field, name in names.items()}
            return {"type": "input_file"} | {name: text for name, text in given.items() if text}
        case _:
            return _text_object(part.text, is_output=is_output)


def citation_object(citation: item_pb2.FileCitation) -> Json:
    """A place of a text that rests on a file."""
    return {
        "type": "file_citation",
        "file_id": citation.file_id,
        "filename": citation.filename,
        "index": citation.start,
    }


def logprob_objects(logprobs: Iterable[item_pb2.ItemLogprob]) -> list[Json]:
    """Tokens with their probabilities and alternatives."""
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


def _output(given: item_pb2.ToolOutputItem) -> Json:
    """One text is written as clients write it: without a part around it."""
    parts = given.output
    output: object = [part_object(part, is_output=False) for part in parts]
    if len(parts) == 1 and parts[0].WhichOneof("part") == "text":
        output = parts[0].text.text
    return {"call_id": given.call_id, "output": output}


def _reasoning(item: item_pb2.Item) -> Json:
    """The thought is shown as its summary, which both dialects read."""
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
            "attributes": _data(result.attributes_json, {}),
        }
        for result in call.results
    ]
    status = "failed" if call.problem else _STATUSES[item.status]
    return {"status": status, "queries": list(call.queries), "results": results or None}


def _mcp_list_tools(item: item_pb2.Item) -> Json:
    listed = item.mcp_list_tools
    tools = [
        {
            "name": tool.name,
            "description": tool.description or None,
            "input_schema": _data(tool.input_schema_json, {}),
            "annotations": _data(tool.annotations_json, None),
        }
        for tool in listed.tools
    ]
    return {"server_label": listed.server_label, "tools": tools, "error": listed.problem or None}


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
    word = item.mcp_approval_response
    return {
        "approval_request_id": word.approval_request_id,
        "approve": word.approve,
        "reason": word.reason or None,
    }


def _data(text: str, otherwise: object) -> object:
    """Parse JSON of third parties; None if it is invalid."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return otherwise


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
"""By the kind, which is the `type` of the JSON too."""
