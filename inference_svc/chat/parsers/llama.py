"""Tool calls as Llama 3 and 4 write them.

Most often a turn is nothing but `{"name": …, "parameters": {…}}`, without a marker; several follow
each other, or stand in a list, in JSON or as Python. After `<|python_tag|>` come the same, a call
of a built-in tool (`brave_search.call(query="…")`), or code for an interpreter. Some write
`<function=NAME>{…}</function>`.
"""

from inference_svc.chat.json_values import json_text
from inference_svc.chat.parsers.json_scanner import ScanState
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.pythonic import read_python_arguments
from inference_svc.chat.parsers.source import ParseSteps, Source
from inference_svc.chat.parsers.unmarked import read_bare_calls

TAGS = ("<|python_tag|>", "<|python_start|>")
TAG_END = "<|python_end|>"
MARKERS = (*TAGS, TAG_END)
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_INTERPRETERS = ("python", "ipython", "code_interpreter")


def read_llama(source: Source, writer: TurnOutput, tools: OfferedTools) -> ParseSteps[None]:
    """Read a turn."""
    yield from read_bare_calls(source, writer, tools)
    writer.say(source.since_mark)
    while begin := (yield from source.until((*TAGS, _FUNCTION), writer.say)):
        if begin == _FUNCTION:
            is_call = yield from _function(source, writer, tools)
        else:
            is_call = yield from _tagged(source, writer, tools)
        if not is_call:
            writer.say(source.since_mark)


def _tagged(source: Source, writer: TurnOutput, tools: OfferedTools) -> ParseSteps[bool]:
    """Read what follows the tag; false where it, or its rest, is no call."""
    place = source.place
    if not (yield from read_bare_calls(source, writer, tools)):
        source.rewind(place)
        if not (yield from _built_in(source, writer, tools)):
            source.rewind(place)
            return (yield from _code(source, writer, tools))
    return bool((yield from source.literal(TAG_END)))


def _built_in(source: Source, writer: TurnOutput, tools: OfferedTools) -> ParseSteps[bool]:
    name = (yield from source.chars(_in_name)).removesuffix(".call")
    if name not in tools or not (yield from source.literal("(")):
        return False
    arguments = yield from read_python_arguments(source)
    if arguments is None:
        return False
    writer.write_call(name, arguments)
    source.mark()
    return True


def _code(source: Source, writer: TurnOutput, tools: OfferedTools) -> ParseSteps[bool]:
    """Read code up to its end, for a tool that runs it."""
    interpreter = next((name for name in _INTERPRETERS if name in tools), "")
    if not interpreter or not (yield from source.peek()):
        return False
    writer.begin_call(interpreter)
    writer.add_arguments('{"code": "')
    yield from source.until((TAG_END,), lambda text: writer.add_arguments(json_text(text)[1:-1]))
    writer.add_arguments('"}')
    return True


def _function(source: Source, writer: TurnOutput, tools: OfferedTools) -> ParseSteps[bool]:
    name = yield from source.chars(_in_name)
    if name not in tools or not (yield from source.literal(">")):
        return False
    yield from source.spaces()
    if (yield from source.peek()) != "{":
        return False
    writer.begin_call(name)
    if (yield from source.json(writer.add_arguments)) is ScanState.BROKEN:
        yield from source.until((_FUNCTION_END,), writer.add_arguments)
        return True
    yield from source.spaces()
    yield from source.literal(_FUNCTION_END)
    return True


def _in_name(character: str) -> bool:
    return character.isalnum() or character in "_-."
