"""Tool calls of Mistral's models, after the marker `[TOOL_CALLS]`.

Older models write a list, `[{"name": …, "arguments": {…}, "id": …}, …]`; newer ones write a marker
for each call, then `name[CALL_ID]…[ARGS]{…}`, with an optional id. Templates refuse ids that are
not nine letters and digits.
"""

import secrets
import string

from inference_svc.chat.parsers.json_calls import Read, read_json_call, read_json_items
from inference_svc.chat.parsers.json_scanner import ScanState
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.source import ParseSteps, Source
from inference_svc.structured_output.spec import ID, ToolCallSyntax

BEGIN, CALL_ID, ARGS = MARKERS = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
SYNTAXES = (
    *(
        ToolCallSyntax(
            before=f"{BEGIN}[",
            head='{"name": "',
            middle='", "arguments": ',
            tail=tail,
            between=", ",
            after="]",
        )
        for tail in ("}", f', "id": "{ID}"}}')
    ),
    ToolCallSyntax(head=BEGIN, middle=ARGS),
    ToolCallSyntax(head=BEGIN, middle=f"{CALL_ID}{ID}{ARGS}"),
)
_ID_CHARACTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9


def new_mistral_id() -> str:
    """Generate an id that Mistral's templates accept."""
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))


def read_mistral(source: Source, output: TurnOutput, _: OfferedTools) -> ParseSteps[None]:
    """Parse a turn."""
    while (yield from output.content_until(source, (BEGIN,))):
        yield from source.spaces()
        match (yield from source.peek()):
            case "[":
                yield from _list(source, output)
            case "{":
                is_call = (yield from read_json_call(source, output)) is not Read.NOTHING
                if not is_call:
                    output.add_content(source.since_mark)
            case _:
                yield from _named(source, output)


def _list(source: Source, output: TurnOutput) -> ParseSteps[None]:
    read = yield from read_json_items(source, output)
    if read is Read.NOTHING:
        output.add_content(source.since_mark)
    elif read is Read.BROKEN:
        yield from source.until((BEGIN,), output.add_arguments, stay=True)


def _named(source: Source, output: TurnOutput) -> ParseSteps[None]:
    name = yield from source.name(":")
    call_id = ""
    if (yield from source.literal(CALL_ID)):
        call_id = yield from source.name(":")
    yield from source.literal(ARGS)
    yield from source.spaces()
    if not name or (yield from source.peek()) != "{":
        output.add_content(source.since_mark)
        return
    is_valid_id = len(call_id) == _ID_LENGTH and all(each in _ID_CHARACTERS for each in call_id)
    output.begin_call(name, call_id if is_valid_id else "")
    if (yield from source.json(output.add_arguments)) is ScanState.BROKEN:
        yield from source.until((BEGIN,), output.add_arguments, stay=True)
