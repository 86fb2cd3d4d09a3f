"""Tool calls that nothing marks: they count where they stand at the beginning of a text, and only
with the names of offered tools. An answer that is JSON, or a list, stays content."""

from inference_svc.chat.parsers.json_calls import Read, read_json_call
from inference_svc.chat.parsers.offered import OfferedTools
from inference_svc.chat.parsers.python_calls import read_python_calls
from inference_svc.chat.parsers.source import Source, Wait
from inference_svc.chat.parsers.writer import TurnWriter

_CALL_KEYS = frozenset(
    {'"name"', '"arguments"', '"parameters"', '"function"', '"type"', '"id"', '"tool_call"',
     '"tool_calls"', '"tool_name"', '"tool_call_id"'}
)  # fmt: skip


def read_bare_calls(source: Source, writer: TurnWriter, tools: OfferedTools) -> Wait[bool]:
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


def _bare_call(source: Source, writer: TurnWriter, tools: OfferedTools) -> Wait[bool]:
    match (yield from _beginning(source)):
        case "json":
            read = yield from read_json_call(source, writer, tools.__contains__)
            if read is Read.BROKEN:
                yield from source.until((), writer.add_arguments)
            return read is not Read.NOTHING
        case "python":
            return (yield from read_python_calls(source, writer, tools.__contains__))
    return False


def _beginning(source: Source) -> Wait[str]:
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
