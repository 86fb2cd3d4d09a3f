"""Tool calls as JSON, `{"name": …, "arguments": {…}}`.

Arguments are streamed once the name is known. Before that nothing of a call has been emitted, so
text that is not a call becomes content. Arguments that turn out to be invalid JSON are emitted as
the model wrote them, so that an agent can show the model its mistake.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeGuard

from inference_svc.chat.json_values import is_unicode, json_or_none, json_text
from inference_svc.chat.parsers.json_scanner import ScanState
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.source import ParseSteps, Source

_NAMES = ('"name"', '"tool_name"')
_ID = '"tool_call_id"'
_ARGUMENTS = ('"arguments"', '"parameters"')


class Read(Enum):
    NOTHING = "no call; nothing was emitted"
    CALL = "one or more calls"
    BROKEN = "a call with invalid JSON arguments; the source is at the error"


ReadItem = Callable[[Source, TurnOutput], ParseSteps[Read]]


def any_name(_: str) -> bool:
    """Accept every name: the position already marks a call."""
    return True


def read_json_call(
    source: Source, output: TurnOutput, accepts: Callable[[str], bool] = any_name
) -> ParseSteps[Read]:
    """Read a call or a list of calls whose names are all accepted."""
    position = source.position
    name = yield from _head(source)
    if name and accepts(name):
        return (yield from _arguments(source, output, name))
    source.rewind(position)
    state = yield from source.json()
    calls = read_calls(source.since(position)) if state is ScanState.CLOSED else []
    if not calls or not all(accepts(name) for name, _ in calls):
        return Read.NOTHING
    for name, arguments in calls:
        output.add_call(name, arguments)
    return Read.CALL


def read_keyed_call(source: Source, output: TurnOutput) -> ParseSteps[Read]:
    """Read a call whose name is the key of its arguments, `{"NAME": {…}}`."""
    opener = yield from _expect(source, ("{",))
    yield from source.spaces()
    name = json_or_none((yield from source.string()))
    colon = yield from _expect(source, (":",))
    yield from source.spaces()
    if not (opener and _is_name(name) and colon and (yield from source.peek()) == "{"):
        return Read.NOTHING
    return (yield from _arguments(source, output, name))


def read_json_items(
    source: Source, output: TurnOutput, read_item: ReadItem = read_json_call
) -> ParseSteps[Read]:
    """Read a list of calls. NOTHING: the list or its rest is not one; `since_mark` has its text."""
    position = source.position
    yield from _expect(source, ("[",))
    while (read := (yield from read_item(source, output))) is Read.CALL:
        source.mark()
        if not (yield from _expect(source, (",",))):
            yield from source.literal("]")
            return read
        position = source.position
    if read is Read.NOTHING:
        source.rewind(position)
    return read


def read_calls(text: str) -> list[tuple[str, str]]:
    """Return (name, arguments) of a call or a list of calls; empty if the text is neither."""
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
    if isinstance(arguments, str):  # some models encode the arguments as a string
        is_json = json_or_none(arguments) is not None
        return (name, arguments) if is_json and is_unicode(arguments) else None
    return name, json_text({} if arguments is None else arguments)


def _is_name(name: Any) -> TypeGuard[str]:
    return isinstance(name, str) and name != "" and is_unicode(name)


def _head(source: Source) -> ParseSteps[str]:
    """Read up to the opening brace of the arguments and return the name; empty if it is no call."""
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
    """Read one text of each step, with white space before it. Returns the last one, or an empty
    text if one is missing."""
    text = ""
    for options in steps:
        yield from source.spaces()
        text = yield from source.literal(*options)
        if not text:
            return ""
    return text


def _arguments(source: Source, output: TurnOutput, name: str) -> ParseSteps[Read]:
    output.begin_call(name)
    if (yield from source.json(output.add_arguments)) is ScanState.BROKEN:
        return Read.BROKEN
    yield from _tail(source)
    return Read.CALL


def _tail(source: Source) -> ParseSteps[None]:
    """Skip the end of a call's object, and keys after the arguments."""
    position = source.position
    yield from source.spaces()
    if (yield from source.literal(",")):
        yield from source.json(is_open=True)
    elif not (yield from source.literal("}")):
        source.rewind(position)
