"""Turns in channels: OpenAI's "harmony" format of gpt-oss.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…

The analysis channel is the reasoning; a message to `functions.NAME`, or to the name of a tool, is a
tool call whose text is the arguments; the text of every other message is content. The prompt ends
with `<|start|>assistant`.
"""

import re
from typing import NamedTuple

from inference_svc.chat.parsers.json_scanner import JsonScan, ScanState
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.source import ParseSteps, Source, TextSink, TextStripper
from inference_svc.structured_output.spec import ToolCallSyntax

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
CONSTRAIN = "<|constrain|>"
MARKERS = (START, CHANNEL, MESSAGE, *ENDS, CONSTRAIN)
_BREAKS = (*ENDS, START, CHANNEL)
REASONING_ENDS = _BREAKS
CLOSINGS = (f"{ENDS[0]}{START}assistant", f"{ENDS[0]}{START}assistant{CHANNEL}final{MESSAGE}")
"""What ends an analysis early. The model chooses the next channel, unless it has analyzed twice."""
_TO_TOOL = " to=functions."
_TYPES = ("", " <|constrain|>json", " json")
SYNTAXES = tuple(
    ToolCallSyntax(before=before, head=_TO_TOOL, middle=f"{channel}{kind}{MESSAGE}", ends_turn=True)
    for before, channel in ((f"{CHANNEL}commentary", ""), ("", f"{CHANNEL}commentary"), ("", ""))
    for kind in _TYPES
)
"""The recipient is written before or after the channel, which may be open already."""
TRIGGERS, CALL_HEADERS = (_TO_TOOL,), (START, CHANNEL)
BETWEEN, FINAL = f"{START}assistant", f"{CHANNEL}final{MESSAGE}"
"""What follows an analysis, and what begins an answer."""
_IN_HEAD = (MESSAGE, CONSTRAIN)
_HEADERS = (CHANNEL, START, MESSAGE, " to=", "to=")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_FUNCTIONS = "functions."
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


class _Header(NamedTuple):
    channel: str
    recipient: str

    @classmethod
    def parse(cls, text: str) -> "_Header":
        """The last channel and recipient of a header count. What is addressed to anybody before
        another channel than "commentary" is no call."""
        first, last = text.find(CHANNEL), text.rfind(CHANNEL)
        found = _CHANNEL.search(text, max(last, 0))
        channel = found[1] if found else ""
        if channel != "commentary":
            text = text[: max(first, 0)] + text[max(last, 0) :]
        recipients = _RECIPIENT.findall(text)
        return cls(channel, recipients[-1] if recipients else "")


class HarmonyReader:
    """Parses a turn including its reasoning. `inline_reasoning` leaves the analysis in the content;
    `opens_in_reasoning`: the prompt ends inside the analysis."""

    def __init__(
        self,
        source: Source,
        output: TurnOutput,
        tools: OfferedTools,
        *,
        inline_reasoning: bool = False,
        opens_in_reasoning: bool = False,
    ) -> None:
        self._source = source
        self._output = output
        self._tools = tools
        self._inline = inline_reasoning
        self._opens_in_reasoning = opens_in_reasoning

    def read(self) -> ParseSteps[None]:
        """Parse all messages."""
        source = self._source
        end = (yield from self._analysis()) if self._opens_in_reasoning else ENDS[0]
        while True:
            if end in ENDS:
                source.mark()
            if not (yield from source.peek()):
                break
            end = yield from self._message(end)

    def _message(self, previous_end: str) -> ParseSteps[str]:
        """Parse a message; returns the marker that ended it."""
        source = self._source
        begin = previous_end
        if begin in ENDS and not (begin := (yield from source.literal(*_HEADERS))):
            return (yield from self._output.content_until(source, _BREAKS))
        end = begin
        if end != MESSAGE:
            end = yield from source.until((MESSAGE, *ENDS))
        if end != MESSAGE:
            self._output.add_content(source.since_mark)
            return end or ENDS[0]
        header = _Header.parse(source.since_mark)
        if header.channel == "analysis" and not header.recipient:
            return (yield from self._analysis())
        name = header.recipient.removeprefix(_FUNCTIONS)
        is_function = name != header.recipient or name in self._tools
        if is_function and self._tools and (yield from self._begin_call(name)):
            return (yield from self._arguments())
        self._output.begin_message()
        return (yield from self._output.content_until(source, _BREAKS))

    def _begin_call(self, name: str) -> ParseSteps[bool]:
        position = self._source.position
        yield from self._source.spaces()
        next_character = yield from self._source.peek()
        is_call = next_character in ("{", "") or bool((yield from self._source.literal(*_BREAKS)))
        self._source.rewind(position)
        if is_call:
            self._output.begin_call(name)
        return is_call

    def _arguments(self) -> ParseSteps[str]:
        """Parse the arguments of a call; without any text there are none. Markers are only in their
        strings, and text behind them is content."""
        source, output = self._source, self._output
        stripper, scan, is_empty = TextStripper(), JsonScan(), True

        def add(text: str) -> None:
            nonlocal is_empty
            size = 0
            while size < len(text) and scan.state is not ScanState.CLOSED:
                if scan.state is ScanState.OPEN:
                    scan.feed(text[size])
                size += 1
            inside = stripper.feed(text[:size])
            is_empty &= not inside
            output.add_arguments(inside)
            if size < len(text):
                output.add_content(text[size:])

        output.begin_message()
        sink: TextSink = add
        while (end := (yield from source.until((*_BREAKS, *_IN_HEAD), sink))) in _IN_HEAD:
            source.mark()
            if scan.is_in_string:
                add(end)
            else:
                sink = add if end == MESSAGE else _drop
        if is_empty:
            output.add_arguments("{}")
        return end

    def _analysis(self) -> ParseSteps[str]:
        source, output = self._source, self._output
        if self._inline:
            output.add_content(source.since_mark)
            source.mark()
            end = yield from source.until(_BREAKS, output.add_content)
            output.add_content(end if end in ENDS else "")
            return end
        return (yield from source.until(_BREAKS, output.thought_sink()))


def _drop(_: str) -> None:
    """The sink of the type that a header names."""
