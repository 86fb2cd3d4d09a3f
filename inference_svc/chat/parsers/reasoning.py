"""Splits a turn into reasoning and content.

Reasoning is at the start of a turn, or was opened by the prompt; then a second opening marker is
accepted. White space around reasoning is dropped.
"""

from enum import Enum
from typing import NamedTuple

from inference_svc.chat.parsers.source import TextStripper, partial_marker
from inference_svc.chat.parsers.turn import Markers


class ReasoningSplit(NamedTuple):
    """New text of a turn; either may be empty."""

    reasoning: str
    rest: str


class _State(Enum):
    START = "only white space so far"
    THINKING = "inside the reasoning"
    AFTER = "white space after the reasoning"
    REST = "the rest of the turn"


class ReasoningSplitter:
    """Splits text that arrives in pieces. `verbatim` preserves markers and white space."""

    def __init__(
        self, markers: Markers | None, *, opens_in_reasoning: bool, verbatim: bool
    ) -> None:
        self._markers = markers or Markers("", "")
        self._is_open = opens_in_reasoning
        self._verbatim = verbatim
        self._pending = ""
        self._stripper = TextStripper()
        self._state = _State.START if markers else _State.REST

    @property
    def is_thinking(self) -> bool:
        """Whether the model is inside its reasoning."""
        return self._state is _State.THINKING or (self._state is _State.START and self._is_open)

    def feed(self, text: str) -> ReasoningSplit:
        """Split a piece of text."""
        self._pending += text
        reasoning = rest = ""
        while True:
            before = self._state
            step = self._step()
            reasoning += step.reasoning
            rest += step.rest
            if self._state is before:
                return ReasoningSplit(reasoning, rest)

    def finish(self) -> ReasoningSplit:
        """End the turn; returns the text that was held back."""
        pending, self._pending = self._pending, ""
        if self.is_thinking:
            return self._reasoning(pending)
        return ReasoningSplit("", "" if self._state is _State.AFTER else pending)

    def _step(self) -> ReasoningSplit:
        match self._state:
            case _State.START:
                return self._at_start()
            case _State.THINKING:
                return self._in_reasoning()
            case _State.AFTER:
                self._pending = self._pending.lstrip()
                if self._pending:
                    self._state = _State.REST
                return ReasoningSplit("", "")
            case _State.REST:
                pending, self._pending = self._pending, ""
                return ReasoningSplit("", pending)

    def _at_start(self) -> ReasoningSplit:
        begin = self._markers.begin
        trimmed = self._pending.lstrip()
        if trimmed.startswith(begin):
            self._state = _State.THINKING
            spaces = len(self._pending) - len(trimmed)
            opening, self._pending = self._pending[: spaces + len(begin)], trimmed[len(begin) :]
            return ReasoningSplit(opening if self._verbatim else "", "")
        if trimmed and not begin.startswith(trimmed):
            self._state = _State.THINKING if self._is_open else _State.REST
        return ReasoningSplit("", "")

    def _in_reasoning(self) -> ReasoningSplit:
        end = self._markers.end
        text, marker, after = self._pending.partition(end)
        if marker:
            self._state = _State.REST if self._verbatim else _State.AFTER
            self._pending = after
            return self._reasoning(text, marker)
        size = len(self._pending) - partial_marker(self._pending, end)
        text, self._pending = self._pending[:size], self._pending[size:]
        return self._reasoning(text)

    def _reasoning(self, text: str, marker: str = "") -> ReasoningSplit:
        return ReasoningSplit(text + marker if self._verbatim else self._stripper.feed(text), "")
