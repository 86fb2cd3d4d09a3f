"""Splits a turn into reasoning and content.

Reasoning is at the start of a turn, or was opened by the prompt; then a second opening marker is
accepted. White space around reasoning is dropped.
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
    markers and white space."""

    def __init__(
        self, markers: Markers | None, sink: TextSink, *, opens_in_reasoning: bool, verbatim: bool
    ) -> None:
        self._markers = markers or Markers("", "")
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
        begin = self._markers.begin
        trimmed = self._pending.lstrip()
        if trimmed.startswith(begin):
            self._state = _State.THINKING
            spaces = len(self._pending) - len(trimmed)
            opening, self._pending = self._pending[: spaces + len(begin)], trimmed[len(begin) :]
            if self._verbatim:
                self._sink(opening)
        elif trimmed and not begin.startswith(trimmed):
            self._state = _State.THINKING if self._is_open else _State.REST

    def _read_reasoning(self) -> None:
        end = self._markers.end
        text, marker, after = self._pending.partition(end)
        if marker:
            self._state = _State.REST if self._verbatim else _State.AFTER
            self._pending = after
        else:
            size = len(text) - partial_marker(text, (end,))
            text, self._pending = text[:size], text[size:]
        self._add_reasoning(text, marker)

    def _add_reasoning(self, text: str, marker: str = "") -> None:
        self._sink(text + marker if self._verbatim else self._stripper.feed(text))
