"""Tool calls of models of unknown format: JSON at the beginning of a turn, in a Markdown fence, or
in common tags, if it names an offered tool.
"""

from inference_svc.chat.parsers.json_calls import Read, read_json_call
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.pythonic import read_python_calls
from inference_svc.chat.parsers.source import ParseSteps, Source

_ENDS = {
    "<tool_call>": "</tool_call>",
    "<tool_calls>": "</tool_calls>",
    "<|tool_call|>": "<|/tool_call|>",
    "<TOOLCALL>": "</TOOLCALL>",
    "```": "```",
}
_FENCE = "```"
MARKERS = tuple(text for text in (*_ENDS, *_ENDS.values()) if text != _FENCE)


def read_any_json(source: Source, writer: TurnOutput, tools: OfferedTools) -> ParseSteps[None]:
    """Read a turn."""
    yield from read_bare_calls(source, writer, tools)
    writer.say(source.since_mark)
    while begin := (yield from source.until(tuple(_ENDS), writer.say)):
        if begin == _FENCE:
            yield from source.chars(_in_label)
        is_call = yield from read_bare_calls(source, writer, tools)
        if not is_call or not (yield from source.literal(_ENDS[begin])):
            writer.say(source.since_mark)


def _in_label(character: str) -> bool:
    return character.isalnum() or character == "_"


_CALL_KEYS = frozenset(
    {'"name"', '"arguments"', '"parameters"', '"function"', '"type"', '"id"', '"tool_call"',
     '"tool_calls"', '"tool_name"', '"tool_call_id"'}
)  # fmt: skip


def read_bare_calls(source: Source, writer: TurnOutput, tools: OfferedTools) -> ParseSteps[bool]:
    """Read one call after the other, in JSON or as Python; say whether there was any.

    `since_mark` is what was read of something else: with no call all of it, else what follows the
    last one.
    """
    num_calls = writer.num_calls
    while (yield from _bare_call(source, writer, tools)):
        source.mark()
        yield from source.spaces()
        if (yield from source.literal(";", ",")):
            yield from source.spaces()
    return writer.num_calls > num_calls


def _bare_call(source: Source, writer: TurnOutput, tools: OfferedTools) -> ParseSteps[bool]:
    match (yield from _beginning(source)):
        case "json":
            read = yield from read_json_call(source, writer, tools.__contains__)
            if read is Read.BROKEN:
                yield from source.until((), writer.add_arguments)
            return read is not Read.NOTHING
        case "python":
            return (yield from read_python_calls(source, writer, tools.__contains__))
    return False


def _beginning(source: Source) -> ParseSteps[str]:
    """Tell from the first characters what comes; an answer in JSON must not wait for its end.

    The source stands where it stood if it may be a call.
    """
    place = source.place
    yield from source.spaces()
    bracket = yield from source.literal("{", "[")
    if bracket == "[":
        yield from source.spaces()
        if (yield from source.peek()).isidentifier():
            source.rewind(place)
            return "python"
        bracket = yield from source.literal("{")
    key = ""
    if bracket == "{":
        yield from source.spaces()
        key = yield from source.string()
    if key in _CALL_KEYS:
        source.rewind(place)
        return "json"
    return ""
