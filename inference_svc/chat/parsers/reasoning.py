"""Splits a turn into reasoning and content.

Reasoning is at the start of a turn, or was opened by the prompt; a second opening marker is
accepted. White space around it is dropped.
"""

from enum import Enum
from typing import NamedTuple

from inference_svc.chat.parsers.source import MarkerScanner, partial_marker
from inference_svc.chat.parsers.turn import Markers


class Split(NamedTuple):
    """A piece of a turn; one of both may be empty."""

    reasoning: str
    rest: str


class _Place(Enum):
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
        self._place = _Place.START if markers else _Place.REST

    @property
    def is_thinking(self) -> bool:
        """Whether the model is inside its thinking."""
        return self._place is _Place.THINKING or (self._place is _Place.START and self._is_open)

    def feed(self, text: str) -> Split:
        """Take more text."""
        self._held += text
        reasoning = rest = ""
        while True:
            before = self._place
            step = self._step()
            reasoning += step.reasoning
            rest += step.rest
            if self._place is before:
                return Split(reasoning, rest)

    def finish(self) -> Split:
        """Give out what was held back. Nothing may follow."""
        held, self._held = self._held, ""
        if self.is_thinking:
            return Split(held if self._verbatim else self._thinking.feed(held), "")
        return Split("", "" if self._place is _Place.AFTER else held)

    def _step(self) -> Split:
        match self._place:
            case _Place.START:
                return self._at_start()
            case _Place.THINKING:
                return self._in_thinking()
            case _Place.AFTER:
                return self._after_thinking()
            case _Place.REST:
                held, self._held = self._held, ""
                return Split("", held)

    def _at_start(self) -> Split:
        begin = self._markers.begin
        trimmed = self._held.lstrip()
        if trimmed.startswith(begin):
            self._place = _Place.THINKING
            spaces = len(self._held) - len(trimmed)
            opening, self._held = self._held[: spaces + len(begin)], trimmed[len(begin) :]
            return Split(opening if self._verbatim else "", "")
        if trimmed and not begin.startswith(trimmed):
            self._place = _Place.THINKING if self._is_open else _Place.REST
        return Split("", "")

    def _in_thinking(self) -> Split:
        end = self._markers.end
        thought, marker, after = self._held.partition(end)
        if marker:
            self._place = _Place.REST if self._verbatim else _Place.AFTER
            self._held = after
            return self._thought(thought, marker)
        keep = partial_marker(self._held, end)
        thought = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return self._thought(thought, "")

    def _thought(self, text: str, marker: str) -> Split:
        return Split(text + marker if self._verbatim else self._thinking.feed(text), "")

    def _after_thinking(self) -> Split:
        self._held = self._held.lstrip()
        if self._held:
            self._place = _Place.REST
        return Split("", "")
