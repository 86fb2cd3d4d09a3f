"""Tool calls in Python syntax: `[get_weather(city="Paris"), get_time()]`.

Used by Llama 3.2, Llama 4 and LFM2, with or without markers, and by OLMo 3, with a call per line
in `<function_calls>`. LFM2 and OLMo may write JSON instead. A call in Python syntax is emitted once
it is complete.
"""

import re
from collections.abc import Callable

from inference_svc.chat.json_values import json_text
from inference_svc.chat.parsers.json_calls import any_name, read_json_list
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.source import ParseSteps, Source

MARKERS = (
    "<|tool_call_start|>", "<|tool_call_end|>", "<|python_start|>", "<|python_end|>",
    "<function_calls>", "</function_calls>",
)  # fmt: skip
_BEGINS, _ENDS = MARKERS[::2], MARKERS[1::2]
_MAX_DEPTH = 32
_WORDS = {"True": "true", "False": "false", "None": "null"}
_WORDS |= {value: value for value in _WORDS.values()}
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\n": "", "\\": "\\", "'": "'", '"': '"'}


def read_pythonic(source: Source, output: TurnOutput, tools: OfferedTools) -> ParseSteps[None]:
    """Parse a turn: calls in markers, or calls of offered tools at its beginning."""
    yield from source.spaces()
    if (yield from source.peek()) == "[":
        yield from read_python_calls(source, output, tools.__contains__)
    output.add_content(source.since_mark)
    while (yield from source.until(_BEGINS, output.add_content)):
        if (yield from _is_json(source)):
            yield from read_json_list(source, output, _ENDS)
        elif (yield from read_python_calls(source, output)):
            yield from source.spaces()
            yield from source.literal(*_ENDS)
        else:
            output.add_content(source.since_mark)


def _is_json(source: Source) -> ParseSteps[bool]:
    position = source.position
    yield from source.spaces()
    yield from source.literal("[")
    yield from source.spaces()
    character = yield from source.peek()
    source.rewind(position)
    return character == "{"


def read_python_calls(
    source: Source, output: TurnOutput, accepts: Callable[[str], bool] = any_name
) -> ParseSteps[bool]:
    """Read a list of calls, or calls without brackets. False if it or its rest is not one;
    `since_mark` then has the text that was not emitted."""
    yield from source.spaces()
    in_list = bool((yield from source.literal("[")))
    while True:
        yield from source.spaces()
        name = yield from source.name()
        if not name or not accepts(name) or not (yield from source.literal("(")):
            return False
        arguments = yield from read_python_arguments(source)
        if arguments is None:
            return False
        output.add_call(name, arguments)
        yield from source.spaces()
        end = yield from source.literal(",", "]")
        source.mark()
        if end == "]":
            return True
        if not end and not (yield from source.peek()).isidentifier():
            return not in_list


def read_python_arguments(source: Source) -> ParseSteps[str | None]:
    """Read keyword arguments and the closing parenthesis; returns JSON, or None if invalid."""
    return (yield from _items(source, ")", "{}", _keyword, 0))


def _items(
    source: Source, closer: str, brackets: str, read_item: "_ReadItem", depth: int
) -> ParseSteps[str | None]:
    items: list[str] = []
    while True:
        yield from source.spaces()
        if (yield from source.literal(closer)):
            return brackets[0] + ", ".join(items) + brackets[1]
        item = None if depth > _MAX_DEPTH else (yield from read_item(source, depth))
        if item is None:
            return None
        items.append(item)
        yield from source.spaces()
        if not (yield from source.literal(",")) and (yield from source.peek()) != closer:
            return None


_ReadItem = Callable[[Source, int], ParseSteps[str | None]]


def _keyword(source: Source, depth: int) -> ParseSteps[str | None]:
    name = yield from source.name()
    yield from source.spaces()
    if not name or not (yield from source.literal("=")):
        return None
    value = yield from _value(source, depth + 1)
    return None if value is None else f"{json_text(name)}: {value}"


def _pair(source: Source, depth: int) -> ParseSteps[str | None]:
    key = (yield from _string(source)) if (yield from source.peek()) in ("'", '"') else None
    yield from source.spaces()
    if key is None or not (yield from source.literal(":")):
        return None
    value = yield from _value(source, depth + 1)
    return None if value is None else f"{key}: {value}"


def _value(source: Source, depth: int) -> ParseSteps[str | None]:
    yield from source.spaces()
    match (yield from source.peek()):
        case "'" | '"':
            return (yield from _string(source))
        case "[":
            yield from source.literal("[")
            return (yield from _items(source, "]", "[]", _value, depth + 1))
        case "(":
            yield from source.literal("(")
            return (yield from _items(source, ")", "[]", _value, depth + 1))
        case "{":
            yield from source.literal("{")
            return (yield from _items(source, "}", "{}", _pair, depth + 1))
    word = yield from source.chars(lambda character: character.isalnum() or character in "+-._")
    return word if _NUMBER.fullmatch(word) else _WORDS.get(word)


def _string(source: Source) -> ParseSteps[str | None]:
    quote = yield from source.literal('"""', "'''", '"', "'")
    position = source.position
    while (yield from source.peek()):
        if (yield from source.literal(quote)):
            text = source.since(position).removesuffix(quote)
            return json_text(_ESCAPE.sub(_unescape, text))
        if (yield from source.literal("\\")) and not (yield from source.peek()):
            return None
        source.skip()
    return None


def _unescape(match: re.Match[str]) -> str:
    escape = match[1]
    if len(escape) > 1:
        return chr(int(escape[1:], 16))
    return _ESCAPED.get(escape, match[0])
