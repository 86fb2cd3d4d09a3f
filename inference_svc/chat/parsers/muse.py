"""Turns of messages with recipients, as Muse writes them:

    to=self<|message|>…<|eom|><|start|>assistant to=user<|message|>…<|eot|>

A message to `self` is reasoning, one to a tool has calls in tags, everything else is content. The
prompt ends with `<|start|>assistant`.
"""

import re

from inference_svc.chat.parsers.call_reader import CallReader
from inference_svc.chat.parsers.families import MUSE
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.source import ParseSteps, Source

MESSAGE = "<|message|>"
_START, _TO = "<|start|>", "to="
_ENDS = ("<|eom|>", "<|eot|>")
FRAMES = (_START, MESSAGE, *_ENDS)
MARKERS = (*FRAMES, *MUSE[0].markers)
_CALLS = CallReader(MUSE)
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
            yield from _read_calls(source, output, tools)
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


def _read_calls(source: Source, output: TurnOutput, tools: OfferedTools) -> ParseSteps[None]:
    yield from source.spaces()
    while begin := (yield from source.literal(*_CALLS.begins, *MUSE[0].section_ends)):
        if begin in _CALLS.begins:
            yield from _CALLS.read_or_content(begin, source, output, tools)
        source.mark()
        yield from source.spaces()
