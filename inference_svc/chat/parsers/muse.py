"""Turns of messages with recipients, as Muse writes them:

    to=self<|message|>…<|eom|><|start|>assistant to=user<|message|>…<|eot|>

A message to `self` is reasoning, one to a tool has calls in tags, everything else is content. The
prompt ends with `<|start|>assistant`.
"""

import re

from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.source import ParseSteps, Source
from inference_svc.chat.parsers.tagged import MUSE, read_calls

MESSAGE = "<|message|>"
_START, _TO = "<|start|>", "to="
_ENDS = ("<|eom|>", "<|eot|>")
FRAMES = (_START, MESSAGE, *_ENDS)
MARKERS = (*FRAMES, *MUSE.markers)
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


def read_muse(source: Source, output: TurnOutput, tools: OfferedTools) -> ParseSteps[None]:
    """Parse a turn after the reasoning at its beginning."""
    while (yield from source.peek()):
        yield from source.spaces()
        recipient = ""
        if (yield from source.literal(_START, _TO)):
            end = yield from source.until((MESSAGE, *_ENDS))
            match = _RECIPIENT.search(source.since_mark) if end == MESSAGE else None
            if match:
                recipient = match[1]
                source.mark()
        if recipient in tools:
            yield from source.spaces()
            if begin := (yield from source.literal(*MUSE.outer)):
                yield from read_calls(MUSE, begin, source, output, tools)
                source.mark()
        if recipient == "self":
            sink = output.thought_sink()
        else:
            output.begin_message()
            sink = output.add_content
        if source.since_mark:
            sink(source.since_mark)
        source.mark()
        yield from source.until(_ENDS, sink)
        source.mark()
