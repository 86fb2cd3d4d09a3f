"""Turns of Functionary 3.2: each message has a recipient in its first line.

    all\n…>>>get_weather\n{"city": "Paris"}

The prompt ends with `>>>`. Messages to `all` are content, those to a tool are its arguments.
"""

from inference_svc.chat.parsers.json_calls import begin_object_call
from inference_svc.chat.parsers.json_scanner import ScanState
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.source import ParseSteps, Source
from inference_svc.structured_output.spec import ToolCallSyntax

BEGIN = ">>>"
TO_ALL = "all\n"
SYNTAX = ToolCallSyntax(head="", middle="\n", between=BEGIN)


def read_functionary(source: Source, output: TurnOutput, tools: OfferedTools) -> ParseSteps[None]:
    """Parse a turn."""
    begin = BEGIN
    while begin:
        if not (yield from source.literal(TO_ALL)) and not (
            yield from _call(source, output, tools)
        ):
            output.add_content(source.since_mark)
        source.mark()
        begin = yield from output.content_until(source, (BEGIN,))


def _call(source: Source, output: TurnOutput, tools: OfferedTools) -> ParseSteps[bool]:
    if not (yield from begin_object_call("\n", source, output, tools)):
        return False
    if (yield from source.json(output.add_arguments)) is ScanState.BROKEN:
        yield from source.until((BEGIN,), output.add_arguments, stay=True)
    return True
