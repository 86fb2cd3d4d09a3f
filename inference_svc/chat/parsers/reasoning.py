"""Splits a turn into reasoning and content.

Reasoning is at the start of a turn, or was opened by the prompt; a second opening marker is
accepted. White space around it is dropped.
"""

from enum import Enum
from typing import NamedTuple

from inference_svc.chat.parsers.source import MarkerScanner, partial_marker
from inference_svc.chat.parsers.turn import Markers


class ReasoningSplit(NamedTuple):
    """A piece of a turn; one of both may be empty."""

    reasoning: str
    rest: str


class _State(Enum):
    START = "before anything but white space"
    THINKING = "inside the thinking"
    AFTER = "white space after the thinking"
    REST = "the rest of the turn"


class ReasoningSplitter:
    """Takes a turn's text in any pieces. `verbatim` leaves the thinking as it was written."""

    def __init__(
        self, markers: Markers | None, *, opens_in_reasoning: bool, verbatim: bool
    ) -> None:
        self._markers = markers or Markers("", "")
        self._is_open = opens_in_reasoning
        self._verbatim = verbatim
        self._held = ""
        self._thinking = MarkerScanner()
        self._place = _State.START if markers else _State.REST

    @property
    def is_thinking(self) -> bool:
        """Whether the model is inside its thinking."""
        return self._place is _State.THINKING or (self._place is _State.START and self._is_open)

    def feed(self, text: str) -> ReasoningSplit:
        """Take more text."""
        self._held += text
        reasoning = rest = ""
        while True:
            before = self._place
            step = self._step()
            reasoning += step.reasoning
            rest += step.rest
            if self._place is before:
                return ReasoningSplit(reasoning, rest)

    def finish(self) -> ReasoningSplit:
        """Give out what was held back. Nothing may follow."""
        held, self._held = self._held, ""
        if self.is_thinking:
            return ReasoningSplit(held if self._verbatim else self._thinking.feed(held), "")
        return ReasoningSplit("", "" if self._place is _State.AFTER else held)

    def _step(self) -> ReasoningSplit:
        match self._place:
            case _State.START:
                return self._at_start()
            case _State.THINKING:
                return self._in_thinking()
            case _State.AFTER:
                return self._after_thinking()
            case _State.REST:
                held, self._held = self._held, ""
                return ReasoningSplit("", held)

    def _at_start(self) -> ReasoningSplit:
        begin = self._markers.begin
        trimmed = self._held.lstrip()
        if trimmed.startswith(begin):
            self._place = _State.THINKING
            spaces = len(self._held) - len(trimmed)
            opening, self._held = self._held[: spaces + len(begin)], trimmed[len(begin) :]
            return ReasoningSplit(opening if self._verbatim else "", "")
        if trimmed and not begin.startswith(trimmed):
            self._place = _State.THINKING if self._is_open else _State.REST
        return ReasoningSplit("", "")

    def _in_thinking(self) -> ReasoningSplit:
        end = self._markers.end
        thought, marker, after = self._held.partition(end)
        if marker:
            self._place = _State.REST if self._verbatim else _State.AFTER
            self._held = after
            return self._thought(thought, marker)
        keep = partial_marker(self._held, end)
        thought = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return self._thought(thought, "")

    def _thought(self, text: str, marker: str) -> ReasoningSplit:
        return ReasoningSplit(text + marker if self._verbatim else self._thinking.feed(text), "")

    def _after_thinking(self) -> ReasoningSplit:
        self._held = self._held.lstrip()
        if self._held:
            self._place = _State.REST
        return ReasoningSplit("", "")
