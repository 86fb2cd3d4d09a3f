"""Collects the output of a parser. White space around tool calls is dropped.

A range is where a part of the content begins and ends in the text of the turn, in characters.
"""

import sys
from collections.abc import Callable, Collection, Sequence

from inference_svc.chat.parsers.json_scanner import JsonScan, ScanState
from inference_svc.chat.parsers.source import ParseSteps, Source, TextSink, TextStripper
from inference_svc.chat.parsers.turn import Markers, ToolCallPiece, TurnDelta

_PARAGRAPH = "\n\n"

MAX_NOISE_CHARACTERS = 256
"""The length up to which text behind a marker is held back, to find out what the marker is: text
behind that of a section of calls is dropped if a call follows, and an answer inside reasoning is
none if the end of the reasoning follows."""
_MAX_ID_CHARACTERS = 64
Range = tuple[int, int]


class TurnOutput:
    """Collects content, reasoning and calls; `pop_deltas` returns what was added since its last
    call, with the pieces of a call joined. `position` returns the end of the text that is added;
    `markers` are those of the format, `thought` those of reasoning."""

    def __init__(
        self,
        new_call_id: Callable[[], str],
        used_ids: Collection[str] = (),
        *,
        position: Callable[[], int],
        inline_reasoning: bool = False,
        markers: tuple[str, ...] = (),
        thought: Markers | None = None,
    ) -> None:
        self._markers = markers
        self._thought = thought
        self.closing = ""
        """The text that closes the answer, if that is open."""
        self.content_end = sys.maxsize
        """Where a stop text begins in the text of the turn; from there on nothing is content."""
        self._inline_reasoning = inline_reasoning
        self._has_reasoning = False
        self._has_message = False
        self._position = position
        self._new_call_id = new_call_id
        self._used_ids = used_ids  # of calls in earlier turns
        self._last = TurnDelta()
        self._deltas = [self._last]
        self._begin = ""  # the marker that was read last, and whether it begins a section
        self._is_section = False
        self._has_open_marker = (
            False  # content has such a marker, and not yet the one that closes it
        )
        self._noise: list[tuple[str, int]] = []  # behind a section that no call follows yet
        self._gap = ""  # white space and markers that are content only if content follows
        self._gap_ranges: list[Range] = []
        self.is_after_call = False
        """Whether no content follows the last call."""
        self._has_left_call = False  # text follows the last call, whatever its arguments are
        self._call_ids: set[str] = set()
        self._arguments: list[str] = []  # of the last call

    def content_until(
        self, source: Source, begins: Sequence[str], sections: Sequence[str] = ()
    ) -> ParseSteps[str]:
        """Read content up to and including the first of these texts; return it, or an empty text at
        the end. Other markers of the format are content only between texts that are, and behind one
        of `begins` that is content, because no call followed. In `sections` are those of `begins`
        that are never content; the text behind them is, unless a call follows soon. A thought
        behind a call is reasoning, up to its end or the next of `begins`."""
        self._has_left_call = self._has_left_call or not source.has_ended
        others = {*filter(None, (*self._markers, self.closing))} - {*begins}
        texts = (*begins, *others)
        while found := (yield from source.until(texts, self.add_content)):
            if found in begins:
                break
            source.mark()
            if self._thought is None or found != self._thought.begin or not self.is_after_call:
                self._add_marker(found)
                continue
            ends = (self._thought.end, *begins)
            if (found := (yield from source.until(ends, self.thought_sink()))) in begins:
                break
            source.mark()
        self._begin, self._is_section = found, found in sections
        return found

    def add_content(self, text: str) -> None:
        end, begin = self._position(), self._begin
        if begin and text.startswith(begin):
            if self._is_section:
                text = text[len(begin) :]
                self._add_noise("", end - len(text))
            self._has_open_marker = not self._is_section
        self._begin = ""
        if self._noise:
            self._add_noise(text, end)
        else:
            self._add_content(text, end)

    def _add_content(self, text: str, end: int) -> None:
        if self.is_after_call:
            text = text.lstrip()
        if not text:
            return
        self.is_after_call = False
        inside = text.rstrip()
        middle = end - len(text) + len(inside)
        if inside:
            self._append_content(self._gap + inside, *self._gap_ranges, (end - len(text), middle))
            self._drop_gap()
        if middle < end:
            self._gap += text[len(inside) :]
            self._gap_ranges.append((middle, end))

    def _add_noise(self, text: str, end: int) -> None:
        self._noise.append((text, end))
        if end - self._noise[0][1] > MAX_NOISE_CHARACTERS:
            self._end_noise()

    def _end_noise(self) -> None:
        noise, self._noise = self._noise, []
        for text, end in noise:
            self._add_content(text, end)

    def _add_marker(self, text: str) -> None:
        """Add a marker that begins nothing. Of several that close the answer, the last one does."""
        if self.is_after_call or (self._noise and text != self.closing):
            return
        self._end_noise()
        if self._has_open_marker:
            self._has_open_marker = False
            self.add_content(text)
            return
        if text == self.closing and text in self._gap:
            self._append_content(self._gap, *self._gap_ranges)
            self._drop_gap()
        end = self._position()
        self._gap += text
        self._gap_ranges.append((end - len(text), end))

    def begin_message(self) -> None:
        """Begin a message of content; messages are separated as paragraphs, unless a call is
        between them."""
        if self._has_message and not self.is_after_call:
            self._gap += _PARAGRAPH
        self._has_message = True

    def add_verbatim(self, text: str) -> None:
        """Add content with its white space."""
        if text:
            end = self._position()
            self._append_content(text, (end - len(text), end))

    def add_reasoning(self, text: str) -> None:
        """Add reasoning, or content if reasoning is left in it."""
        if self._inline_reasoning:
            self.add_verbatim(text)
        elif text:
            if self._last.content or self._last.tool_calls:
                self._begin_delta()
            self._last.reasoning += text
            self._has_reasoning = True

    def thought_sink(self) -> TextSink:
        """Return the sink for one thought; thoughts are separated as paragraphs. Markers before one
        are no content, as at the end of the turn."""
        if self._inline_reasoning:
            return self.add_content
        if not self._gap.isspace():
            self._drop_gap()
        stripper = TextStripper()
        gap = _PARAGRAPH if self._has_reasoning else ""

        def add(text: str) -> None:
            nonlocal gap
            if inside := stripper.feed(text):
                self.add_reasoning(gap + inside)
                gap = ""

        return add

    @property
    def undecided_begin(self) -> int | None:
        """Where text begins that may become content; None if there is none."""
        if self._noise and not self._gap_ranges:
            return self._noise[0][1] - len(self._noise[0][0])
        return self._gap_ranges[0][0] if self._gap_ranges else None

    @property
    def num_calls(self) -> int:
        return len(self._call_ids)

    @property
    def has_open_call(self) -> bool:
        """Whether the last call is not closed, and its arguments are an incomplete JSON object;
        invalid ones are not."""
        if self._has_left_call or not self._call_ids:
            return False
        scan = JsonScan()
        states = map(scan.feed, "".join(self._arguments))
        return all(state is ScanState.OPEN for state in states)

    def begin_call(self, name: str, call_id: str = "") -> None:
        """Begin a call; it ends when the next call or content begins. The model's `call_id` is
        replaced if an earlier call has it, or if it is longer than clients may send back."""
        self._noise.clear()
        self._has_open_marker = self._has_left_call = False
        if self.closing and self.closing in self._gap:
            self.closing = ""
        self._drop_gap()
        self.is_after_call = True
        is_used = call_id in self._call_ids or call_id in self._used_ids
        if not call_id or is_used or len(call_id) > _MAX_ID_CHARACTERS:
            call_id = self._new_call_id()
        self._last.tool_calls.append(ToolCallPiece(self.num_calls, call_id, name, ""))
        self._call_ids.add(call_id)
        self._arguments.clear()

    def add_arguments(self, text: str) -> None:
        self._arguments.append(text)
        if pieces := self._last.tool_calls:
            pieces[-1].arguments += text
        elif text:
            pieces.append(ToolCallPiece(self.num_calls - 1, "", "", text))

    def add_call(self, name: str, arguments: str) -> None:
        """Add a complete call."""
        self.begin_call(name)
        self.add_arguments(arguments)

    def finish(self, *, in_content: bool = False) -> None:
        """End the turn: trailing white space becomes content, unless a marker is in it. In content,
        markers before the end are content too."""
        self._end_noise()
        if in_content or self._gap.isspace():
            self._append_content(self._gap, *self._gap_ranges)
        self._drop_gap()

    def pop_deltas(self) -> list[TurnDelta]:
        """Return and clear what was added, in order. At least one delta, which may be empty."""
        deltas, self._deltas = self._deltas, []
        self._begin_delta()
        return deltas

    def _begin_delta(self) -> None:
        self._last = TurnDelta()
        self._deltas.append(self._last)

    def _append_content(self, text: str, *ranges: Range) -> None:
        end = self.content_end
        num_cut = sum(max(last - max(first, end), 0) for first, last in ranges)
        if kept := text[: len(text) - num_cut]:
            if self._last.tool_calls:
                self._begin_delta()
            self._last.content += kept
            self._last.ranges += [(first, min(last, end)) for first, last in ranges if first < end]

    def _drop_gap(self) -> None:
        self._gap = ""
        self._gap_ranges.clear()
