"""Tool calls as Mistral's models write them, after the marker `[TOOL_CALLS]`.

Older ones write a list, `[{"name": …, "arguments": {…}, "id": …}, …]`; newer ones the name and the
arguments of each call after a marker of its own, `name[CALL_ID]…[ARGS]{…}`, the id optional.
Templates refuse ids in any other form than nine letters and digits.
"""

import secrets
import string

from inference_svc.chat.parsers.json_calls import Read, read_json_call, read_json_items
from inference_svc.chat.parsers.json_scanner import ScanState
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.source import ParseSteps, Source

BEGIN, CALL_ID, ARGS = MARKERS = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
_ID_CHARACTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9


def new_mistral_id() -> str:
    """Return an id that Mistral's templates accept."""
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))


def read_mistral(source: Source, writer: TurnOutput, _: OfferedTools) -> ParseSteps[None]:
    """Read a turn."""
    while (yield from source.until((BEGIN,), writer.say)):
        yield from source.spaces()
        match (yield from source.peek()):
            case "[":
                yield from _list(source, writer)
            case "{":
                is_call = (yield from read_json_call(source, writer)) is not Read.NOTHING
                if not is_call:
                    writer.say(source.since_mark)
            case _:
                yield from _named(source, writer)


def _list(source: Source, writer: TurnOutput) -> ParseSteps[None]:
    read = yield from read_json_items(source, writer)
    if read is Read.NOTHING:
        writer.say(source.since_mark)
    elif read is Read.BROKEN:
        yield from source.until((BEGIN,), writer.add_arguments, stay=True)


def _named(source: Source, writer: TurnOutput) -> ParseSteps[None]:
    name = yield from source.chars(_in_name)
    call_id = ""
    if (yield from source.literal(CALL_ID)):
        call_id = yield from source.chars(_in_name)
    yield from source.literal(ARGS)
    yield from source.spaces()
    if not name or (yield from source.peek()) != "{":
        writer.say(source.since_mark)
        return
    is_good_id = len(call_id) == _ID_LENGTH and all(each in _ID_CHARACTERS for each in call_id)
    writer.begin_call(name, call_id if is_good_id else "")
    if (yield from source.json(writer.add_arguments)) is ScanState.BROKEN:
        yield from source.until((BEGIN,), writer.add_arguments, stay=True)


def _in_name(character: str) -> bool:
    return character.isalnum() or character in "_-.:"
