"""Turns in channels, as gpt-oss writes them (OpenAI's "harmony" format).

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…

The analysis is the reasoning; a message to `functions.NAME` is a tool call whose text is the
arguments; all else is content. The prompt ends with `<|start|>assistant`.
"""

import re
from typing import NamedTuple

from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.source import MarkerScanner, ParseSteps, Source, TextSink

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
MARKERS = (START, CHANNEL, MESSAGE, *ENDS, "<|constrain|>")
_BREAKS = (*ENDS, START, CHANNEL)
_HEADS = (CHANNEL, START, MESSAGE, " to=", "to=")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")
_ANY_RECIPIENT = re.compile(r"\bto=[^\s<]")
_PARAGRAPH = "\n\n"


class _Header(NamedTuple):
    channel: str
    function: str
    has_recipient: bool

    @classmethod
    def parse(cls, text: str) -> "_Header":
        channel, function = _CHANNEL.search(text), _RECIPIENT.search(text)
        return cls(
            channel[1] if channel else "",
            function[1] if function else "",
            _ANY_RECIPIENT.search(text) is not None,
        )


class HarmonyReader:
    """Reads a turn, its reasoning included.

    Args:
        inline_reasoning: leave the analysis in the content, as it was written.
        opens_in_reasoning: the prompt ends inside the analysis.
    """

    def __init__(
        self,
        source: Source,
        writer: TurnOutput,
        tools: OfferedTools,
        *,
        inline_reasoning: bool = False,
        opens_in_reasoning: bool = False,
    ) -> None:
        self._source = source
        self._writer = writer
        self._tools = tools
        self._inline = inline_reasoning
        self._has_content = False
        self._has_thought = False
        self._opens_in_reasoning = opens_in_reasoning
        writer.is_thinking = opens_in_reasoning

    def read(self) -> ParseSteps[None]:
        """Read message after message."""
        end = (yield from self._analysis()) if self._opens_in_reasoning else ENDS[0]
        while (yield from self._source.peek()):
            end = yield from self._message(end)

    def _message(self, previous_end: str) -> ParseSteps[str]:
        """Read one message; return the marker that ended it."""
        source = self._source
        if previous_end in ENDS:
            source.mark()
            if not (yield from source.literal(*_HEADS)):
                return (yield from source.until(_BREAKS, self._writer.say))
        end = yield from source.until((MESSAGE, *ENDS))
        if end != MESSAGE:
            self._writer.say(source.since_mark)
            return end or ENDS[0]
        header = _Header.parse(source.since_mark)
        if header.channel == "analysis" and not header.has_recipient:
            return (yield from self._analysis())
        if header.function and self._tools and (yield from self._begin_call(header.function)):
            arguments = MarkerScanner()
            return (
                yield from source.until(
                    _BREAKS, lambda text: self._writer.add_arguments(arguments.feed(text))
                )
            )
        return (yield from self._content(as_written=header.has_recipient))

    def _begin_call(self, name: str) -> ParseSteps[bool]:
        place = self._source.place
        yield from self._source.spaces()
        is_call = (yield from self._source.peek()) == "{"
        self._source.rewind(place)
        if is_call:
            self._writer.begin_call(name)
        return is_call

    def _analysis(self) -> ParseSteps[str]:
        source, writer = self._source, self._writer
        if self._inline:
            writer.say(source.since_mark)
            source.mark()
            end = yield from source.until(_BREAKS, writer.say)
            writer.say(end if end in ENDS else "")
            return end
        writer.is_thinking = True
        end = yield from source.until(_BREAKS, self._thought())
        writer.is_thinking = False
        return end

    def _thought(self) -> TextSink:
        """Return what takes one message of the analysis; messages are paragraphs."""
        thought = MarkerScanner()
        gap = _PARAGRAPH if self._has_thought else ""

        def think(text: str) -> None:
            nonlocal gap
            if inside := thought.feed(text):
                self._writer.think(gap + inside)
                self._has_thought, gap = True, ""

        return think

    def _content(self, *, as_written: bool) -> ParseSteps[str]:
        """Emit content; messages to unknown recipients keep their header."""
        source, writer = self._source, self._writer
        writer.say(_PARAGRAPH if self._has_content else "")
        self._has_content = True
        if as_written:
            writer.say(source.since_mark)
        return (yield from source.until(_BREAKS, writer.say))
