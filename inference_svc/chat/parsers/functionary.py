"""Turns of Functionary 3.2: each message has a recipient in its first line.

    all\n…>>>get_weather\n{"city": "Paris"}

The prompt ends with `>>>`. Messages to `all` are content, those to a tool are its arguments.
"""

from inference_svc.chat.parsers.call_reader import CallReader
from inference_svc.chat.parsers.families import FUNCTIONARY
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.source import ParseSteps, Source
from inference_svc.structured_output.spec import ToolCallSyntax

BEGIN = ">>>"
TO_ALL = "all\n"
_CALLS = CallReader(FUNCTIONARY)
SYNTAX = ToolCallSyntax(head="", middle="\n", between=BEGIN)


def read_functionary(source: Source, output: TurnOutput, tools: OfferedTools) -> ParseSteps[None]:
    begin = BEGIN
    while begin:
        if not (yield from source.literal(TO_ALL)):
            yield from _CALLS.read_or_content(begin, source, output, tools)
        source.mark()
        begin = yield from output.content_until(source, (BEGIN,))
