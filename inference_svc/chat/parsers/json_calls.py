"""Tool calls as JSON, `{"name": …, "arguments": {…}}`, inside whatever marks them in a turn.

Arguments are passed on while they are written, as soon as the name is known. Until then nothing of
a call has been sent, so what turns out not to be one can come out as content. What breaks later
stays in the arguments, as the model wrote it: an agent can show the model its mistake.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, TypeGuard

from inference_svc.chat.json_values import is_unicode, json_or_none, json_text
from inference_svc.chat.parsers.json_scanner import ScanState
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.source import ParseSteps, Source

_NAMES = ('"name"', '"tool_name"')
_ID = '"tool_call_id"'
_ARGUMENTS = ('"arguments"', '"parameters"')


class Read(Enum):
    """What came of reading a call."""

    NOTHING = "it is none; nothing was sent of it"
    CALL = "a call, or several"
    BROKEN = "a call whose arguments are not JSON; the source stands where they break"


ReadItem = Callable[[Source, TurnOutput], ParseSteps[Read]]


def any_name(_: str) -> bool:
    """Accept every name: the position already marks a call."""
    return True


def read_json_call(
    source: Source, writer: TurnOutput, accepts: Callable[[str], bool] = any_name
) -> ParseSteps[Read]:
    """Read a call or a list of calls whose names are all accepted."""
    place = source.place
    name = yield from _head(source)
    if name and accepts(name):
        return (yield from _arguments(source, writer, name))
    source.rewind(place)
    state = yield from source.json()
    calls = read_calls(source.since(place)) if state is ScanState.CLOSED else []
    if not calls or not all(accepts(name) for name, _ in calls):
        return Read.NOTHING
    for name, arguments in calls:
        writer.write_call(name, arguments)
    return Read.CALL


def read_keyed_call(source: Source, writer: TurnOutput) -> ParseSteps[Read]:
    """Read a call whose name is the key of its arguments, `{"NAME": {…}}`."""
    opener = yield from _expect(source, ("{",))
    yield from source.spaces()
    name = json_or_none((yield from source.string()))
    colon = yield from _expect(source, (":",))
    yield from source.spaces()
    if not (opener and _is_name(name) and colon and (yield from source.peek()) == "{"):
        return Read.NOTHING
    return (yield from _arguments(source, writer, name))


def read_json_list(
    source: Source, writer: TurnOutput, ends: Sequence[str], read_item: ReadItem = read_json_call
) -> ParseSteps[None]:
    """Read a list of calls, each while it is written, and what ends it; the rest is content."""
    match (yield from read_json_items(source, writer, read_item)):
        case Read.NOTHING:
            writer.say(source.since_mark)
        case Read.BROKEN:
            yield from source.until(ends, writer.add_arguments)
        case Read.CALL:
            yield from source.spaces()
            yield from source.literal(*ends)


def read_json_items(
    source: Source, writer: TurnOutput, read_item: ReadItem = read_json_call
) -> ParseSteps[Read]:
    """Read a list of calls. NOTHING: it, or its rest, is none; `since_mark` is what was read."""
    place = source.place
    yield from _expect(source, ("[",))
    while (read := (yield from read_item(source, writer))) is Read.CALL:
        source.mark()
        if not (yield from _expect(source, (",",))):
            yield from source.literal("]")
            return read
        place = source.place
    if read is Read.NOTHING:
        source.rewind(place)
    return read


def read_calls(text: str) -> list[tuple[str, str]]:
    """Return (name, arguments) of one call or a list of calls; empty where it is neither."""
    value = json_or_none(text)
    if isinstance(value, dict):
        value = value.get("tool_calls", value.get("tool_call", value))
    calls = [_read_call(item) for item in (value if isinstance(value, list) else [value])]
    return [call for call in calls if call] if all(calls) else []


def _read_call(value: Any) -> tuple[str, str] | None:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict):
        return None
    name = value.get("name", value.get("tool_name"))
    if not _is_name(name):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):  # some models write the arguments as a text of JSON
        is_json = json_or_none(arguments) is not None
        return (name, arguments) if is_json and is_unicode(arguments) else None
    return name, json_text({} if arguments is None else arguments)


def _is_name(name: Any) -> TypeGuard[str]:
    return isinstance(name, str) and name != "" and is_unicode(name)


def _head(source: Source) -> ParseSteps[str]:
    """Read up to the arguments' opening brace; empty where the beginning is another."""
    key = yield from _expect(source, ("{",), (*_NAMES, _ID))
    if key == _ID:
        yield from _expect(source, (":",))
        yield from source.spaces()
        yield from source.string()
        key = yield from _expect(source, (",",), _NAMES)
    if not key or not (yield from _expect(source, (":",))):
        return ""
    yield from source.spaces()
    name = json_or_none((yield from source.string()))
    if not (yield from _expect(source, (",",), _ARGUMENTS, (":",))):
        return ""
    yield from source.spaces()
    return name if (yield from source.peek()) == "{" and _is_name(name) else ""


def _expect(source: Source, *steps: tuple[str, ...]) -> ParseSteps[str]:
    """Take one text of each step, white space before them; the last, or empty where one lacks."""
    taken = ""
    for options in steps:
        yield from source.spaces()
        taken = yield from source.literal(*options)
        if not taken:
            return ""
    return taken


def _arguments(source: Source, writer: TurnOutput, name: str) -> ParseSteps[Read]:
    writer.begin_call(name)
    if (yield from source.json(writer.add_arguments)) is ScanState.BROKEN:
        return Read.BROKEN
    yield from _tail(source)
    return Read.CALL


def _tail(source: Source) -> ParseSteps[None]:
    """Skip the end of a call's object, and keys that follow the arguments."""
    place = source.place
    yield from source.spaces()
    if (yield from source.literal(",")):
        yield from source.json(is_open=True)
    elif not (yield from source.literal("}")):
        source.rewind(place)


BEGIN, END = MARKERS = ("<tool_call>", "</tool_call>")


def parse_hermes(source: Source, writer: TurnOutput, _: OfferedTools) -> ParseSteps[None]:
    """Read a turn."""
    while (yield from source.until((BEGIN,), writer.say)):
        read = yield from read_json_call(source, writer)
        if read is Read.NOTHING:
            writer.say(source.since_mark)
        elif read is Read.BROKEN:
            yield from source.until((END,), writer.add_arguments)
        else:
            yield from source.spaces()
            if (yield from source.literal("}")):
                yield from source.spaces()
            yield from source.literal(END)
