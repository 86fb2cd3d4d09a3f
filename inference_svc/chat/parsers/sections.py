"""Tool calls as DeepSeek's models write them, between markers of their own.

R1 and V3 write the kind of tool, then the name, then the arguments in a Markdown fence; V3.1 the
name, then the arguments. (V3.2 writes tags, see `tagged`.) Some write the markers with plain
characters, or leave out the one that opens the list.
"""

from inference_svc.chat.parsers.json_scan import ScanState
from inference_svc.chat.parsers.offered import OfferedTools
from inference_svc.chat.parsers.source import Source, Wait
from inference_svc.chat.parsers.writer import TurnWriter

CALLS_BEGIN = ("<｜tool▁calls▁begin｜>", "<｜tool_calls_begin｜>", "<｜tool calls begin｜>")
CALL_BEGIN = "<｜tool▁call▁begin｜>"
SEPARATOR = "<｜tool▁sep｜>"
CALL_END = "<｜tool▁call▁end｜>"
CALLS_END = "<｜tool▁calls▁end｜>"
MARKERS = (CALLS_BEGIN[0], CALL_BEGIN, SEPARATOR, CALL_END, CALLS_END)


def read_deepseek(source: Source, writer: TurnWriter, _: OfferedTools) -> Wait[None]:
    """Read a turn."""
    while begin := (yield from source.until((*CALLS_BEGIN, CALL_BEGIN), writer.say)):
        if begin != CALL_BEGIN:
            yield from source.spaces()
            begin = yield from source.literal(CALL_BEGIN)
        while begin == CALL_BEGIN and (yield from _call(source, writer)):
            source.mark()
            yield from source.spaces()
            begin = yield from source.literal(CALL_BEGIN, CALLS_END)
        if begin != CALLS_END:
            writer.say(source.since_mark)


def _call(source: Source, writer: TurnWriter) -> Wait[bool]:
    """Read a call after its begin marker; false where it is none."""
    name = yield from source.chars(_in_name)
    if not (yield from source.literal(SEPARATOR)):
        return False
    yield from source.spaces()
    has_kind = (yield from source.peek()) not in ("{", "")
    if has_kind:
        name = yield from source.chars(_in_name)
        yield from source.spaces()
        if (yield from source.literal("```")):
            yield from source.chars(str.isalpha)
        yield from source.spaces()
    if not name or (yield from source.peek()) != "{":
        return False
    writer.begin_call(name)
    if (yield from source.json(writer.add_arguments)) is ScanState.BROKEN:
        yield from source.until((CALL_END,), writer.add_arguments)
        return True
    yield from source.spaces()
    yield from source.literal("```")
    yield from source.spaces()
    yield from source.literal(CALL_END)
    return True


def _in_name(character: str) -> bool:
    return character.isalnum() or character in "_-.:"
