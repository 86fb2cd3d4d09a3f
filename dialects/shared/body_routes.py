"""Which route a body is meant for, by fields that bodies of other routes do not have."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from svc_kit.errors import InvalidField

Routes = tuple[str, ...]
_CHAT, _MESSAGES, _OLLAMA_CHAT = "/v1/chat/completions", "/v1/messages", "/api/chat"
_INPUTS: Final[Mapping[str, Routes]] = {
    "input_prefix": ("/infill",),
    "messages": (_CHAT, _MESSAGES, _OLLAMA_CHAT),
    "prompt": ("/v1/completions", "/api/generate", "/completion"),
    "input": ("/v1/responses", "/v1/embeddings", "/api/embed", "/embedding"),
    "content": ("/embedding",),
}
"""The routes that have one of these fields as their input. The first that a body has decides."""
MARKS: Final[Mapping[str, Routes]] = {
    "system": (_MESSAGES, "/api/generate"),
    "stop_sequences": (_MESSAGES,),
    "output_config": (_MESSAGES,),
    "options": (_OLLAMA_CHAT, "/api/generate", "/api/embed"),
    "format": (_OLLAMA_CHAT, "/api/generate"),
    "context": ("/api/generate",),
    "raw": ("/api/generate",),
    "max_tokens": (_CHAT, _MESSAGES, "/v1/completions"),
    "max_completion_tokens": (_CHAT,),
    "response_format": (_CHAT, "/v1/completions"),
    "stream_options": (_CHAT, "/v1/completions", "/v1/responses"),
    "n": (_CHAT, "/v1/completions"),
    "n_predict": (_CHAT, "/v1/completions", "/completion"),
    "stop": (_CHAT, "/v1/completions", "/completion"),
    "encoding_format": ("/v1/embeddings",),
    "instructions": ("/v1/responses",),
    "max_output_tokens": ("/v1/responses",),
    "previous_response_id": ("/v1/responses",),
}
"""The routes that have these fields. Others refuse them, or would ignore them."""
_OF_TOOLS: Final = {"input_schema": (_MESSAGES,), "function": (_CHAT, _OLLAMA_CHAT)}
_OF_MESSAGES: Final = {"images": (_OLLAMA_CHAT,), "tool_name": (_OLLAMA_CHAT,)}
_OF_ROLES: Final = {
    "developer": (_CHAT, _OLLAMA_CHAT),
    "tool": (_CHAT, _OLLAMA_CHAT),
    "function": (_CHAT,),
}
_OF_PARTS: Final = {
    "text": (_CHAT, _MESSAGES),
    **dict.fromkeys(("image_url", "input_audio", "file"), (_CHAT,)),
    **dict.fromkeys(("image", "document", "tool_use", "tool_result", "thinking"), (_MESSAGES,)),
}
_MANY: Final = 100
"""Items of a list that are looked at."""


def check_route(fields: Mapping[str, Any], route: str) -> None:
    """Raise InvalidField if a body is meant for another route: if it has a field that `route` does
    not have, or not the input of `route`."""
    inputs = [name for name in _INPUTS if fields.get(name) is not None]
    if not inputs:
        return
    of_input = next((name for name in inputs if route in _INPUTS[name]), inputs[0])
    possible = _INPUTS[of_input]
    for field, routes in (*_marks(fields), (of_input, possible)):
        meant = [each for each in possible if each in routes]
        if meant and route not in routes:
            names = " or ".join(filter(None, (", ".join(meant[:-1]), meant[-1])))
            raise InvalidField(field=field, problem=f"send a body that has it to {names}")


def _marks(fields: Mapping[str, Any]) -> Iterator[tuple[str, Routes]]:
    """The fields that only some routes have, with these routes."""
    yield from _names(fields, MARKS)
    for path, tool in _objects(fields, "tools"):
        yield from _names(tool, _OF_TOOLS, path)
    for path, message in _objects(fields, "messages"):
        yield from _names(message, _OF_MESSAGES, path)
        yield from _values(message, "role", _OF_ROLES, path)
        for part_path, part in _objects(message, f"{path}.content"):
            yield from _values(part, "type", _OF_PARTS, part_path)
        for call_path, call in _objects(message, f"{path}.tool_calls"):
            function = call.get("function")
            arguments = function.get("arguments") if isinstance(function, dict) else None
            if isinstance(arguments, str | dict):
                route = _CHAT if isinstance(arguments, str) else _OLLAMA_CHAT
                yield f"{call_path}.function.arguments", (route,)


def _names(
    fields: Mapping[str, Any], marks: Mapping[str, Routes], path: str = ""
) -> Iterator[tuple[str, Routes]]:
    for name in fields:
        if name in marks and fields[name] is not None:
            yield f"{path}.{name}" if path else name, marks[name]


def _values(
    fields: Mapping[str, Any], name: str, marks: Mapping[str, Routes], path: str
) -> Iterator[tuple[str, Routes]]:
    value = fields.get(name)
    if isinstance(value, str) and value in marks:
        yield f"{path}.{name}", marks[value]


def _objects(fields: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects in the list that the last name of a path names, with their paths."""
    items = fields.get(path.rpartition(".")[2])
    for index, item in enumerate(items[:_MANY] if isinstance(items, list) else ()):
        if isinstance(item, dict):
            yield f"{path}[{index}]", item
