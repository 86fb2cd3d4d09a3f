"""Splits a turn into reasoning and content.

Reasoning is at the start of a turn, or was opened by the prompt; then a second opening marker is
accepted. It ends with its closing marker, or where a text begins that a thought never contains.
White space around reasoning is dropped.
"""

from enum import Enum

from inference_svc.chat.parsers.source import TextSink, TextStripper
from inference_svc.chat.parsers.turn import Markers
from inference_svc.engine.detokenizer import partial_marker


class _State(Enum):
    START = "only white space so far"
    THINKING = "inside the reasoning"
    AFTER = "white space after the reasoning"
    REST = "the rest of the turn"


class ReasoningSplitter:
    """Splits text that arrives in pieces; `sink` receives the reasoning. `verbatim` preserves
    markers and white space; `interrupts` end the reasoning and are not part of it."""

    def __init__(
        self,
        markers: Markers | None,
        sink: TextSink,
        *,
        opens_in_reasoning: bool,
        verbatim: bool,
        interrupts: tuple[str, ...] = (),
    ) -> None:
        self._markers = Markers(markers.begin.lstrip(), markers.end) if markers else Markers("", "")
        self._ends = (self._markers.end, *interrupts)
        self._sink = sink
        self._is_open = opens_in_reasoning
        self._verbatim = verbatim
        self._pending = ""
        self._stripper = TextStripper()
        self._state = _State.START if markers else _State.REST

    @property
    def is_thinking(self) -> bool:
        """Whether the model is inside its reasoning."""
        return self._state is _State.THINKING or (self._state is _State.START and self._is_open)

    @property
    def num_pending(self) -> int:
        """The number of characters that are held back."""
        return len(self._pending)

    def feed(self, text: str) -> str:
        """Split a piece of text; returns the part that is not reasoning."""
        self._pending += text
        before = None
        while self._state is not before and self._state is not _State.REST:
            before = self._state
            self._step()
        if self._state is not _State.REST:
            return ""
        rest, self._pending = self._pending, ""
        return rest

    def drop_pending(self) -> int:
        """Drop the text that is held back, since it may be the beginning of a marker; return its
        length."""
        if self._verbatim:
            return 0
        length, self._pending = len(self._pending), ""
        return length

    def finish(self) -> str:
        """End the turn; returns the text that was held back and is not reasoning."""
        pending, self._pending = self._pending, ""
        if self.is_thinking:
            self._add_reasoning(pending)
            return ""
        return "" if self._state is _State.AFTER else pending

    def _step(self) -> None:
        if self._state is _State.START:
            self._read_start()
        elif self._state is _State.THINKING:
            self._read_reasoning()
        else:
            self._pending = self._pending.lstrip()
            if self._pending:
                self._state = _State.REST

    def _read_start(self) -> None:
        begin, end = self._markers
        trimmed = self._pending.lstrip()
        if trimmed.startswith(begin):
            self._state = _State.THINKING
            spaces = len(self._pending) - len(trimmed)
            opening, self._pending = self._pending[: spaces + len(begin)], trimmed[len(begin) :]
            if self._verbatim:
                self._sink(opening)
        elif trimmed.startswith(end) and not self._verbatim:
            self._state, self._pending = _State.AFTER, trimmed[len(end) :]
        elif trimmed and not any(marker.startswith(trimmed) for marker in self._markers):
            self._state = _State.THINKING if self._is_open else _State.REST

    def _read_reasoning(self) -> None:
        found = [(at, end) for end in self._ends if (at := self._pending.find(end)) >= 0]
        if found:
            at, end = min(found)
            marker = end if end == self._markers.end else ""
            is_over = self._verbatim or not marker
            self._state = _State.REST if is_over else _State.AFTER
            text, self._pending = self._pending[:at], self._pending[at + len(marker) :]
        else:
            marker = ""
            size = len(self._pending) - partial_marker(self._pending, self._ends)
            text, self._pending = self._pending[:size], self._pending[size:]
        self._add_reasoning(text, marker)

    def _add_reasoning(self, text: str, marker: str = "") -> None:
        self._sink(text + marker if self._verbatim else self._stripper.feed(text))
