"""Counts the reasoning tokens of a sequence, and ends the reasoning when a budget is spent.

The markers are searched in the text of the tokens, as `chat.parsers` does; a marker may consist of
several tokens. A token is reasoning if its first byte is. Texts are bytes decoded as Latin-1.
"""

from collections import deque
from typing import NamedTuple

from inference_svc.engine.detokenizer import partial_marker


class ReasoningSpec(NamedTuple):
    """How the reasoning of a turn is recognized, and its maximum length.

    It begins with the turn, by `begin`, and ends with the first of `ends`. `is_open`: the prompt
    ends inside it; `repeats`: it can begin again anywhere. `budget` is the maximum number of
    tokens, None for no maximum. `closings` are the tokens that end it: the first ones, and when the
    model begins again, the next ones.
    """

    begin: str
    ends: tuple[str, ...]
    is_open: bool = False
    repeats: bool = False
    budget: int | None = None
    closings: tuple[tuple[int, ...], ...] = ()


class _Pending(NamedTuple):
    """A token in the held-back text, from `start` on."""

    token: int
    start: int


def _latin(text: str) -> str:
    return text.encode().decode("latin-1")


class ReasoningTracker:
    def __init__(self, spec: ReasoningSpec | None) -> None:
        self._spec = spec
        self._begin, self._ends = "", tuple[str, ...]()
        if spec is not None:
            self._begin, self._ends = _latin(spec.begin), tuple(map(_latin, spec.ends))
        self._is_inside = spec is not None and spec.is_open
        self._is_over = spec is None
        self._count = 0
        self._held = ""  # may be the beginning of a marker
        self._pending: list[_Pending] = []
        self._forced: deque[int] = deque()
        self._num_closings = 0
        self._close_if_spent()

    @property
    def num_tokens(self) -> int:
        """The number of reasoning tokens so far, without those of markers."""
        return self._count + len(self._pending)

    @property
    def forced(self) -> int | None:
        """The token that must be next, to end the reasoning; None if any may follow."""
        return self._forced[0] if self._forced else None

    def add(self, token: int, piece: bytes) -> None:
        """Add an output token with its bytes."""
        if self._forced and self._forced.popleft() != token:
            self._forced.clear()
        if self._is_over:
            return
        text = piece.decode("latin-1")
        if self._is_inside:
            self._read_reasoning(text, token)
        else:
            self._find_begin(text)
        self._close_if_spent()

    def _find_begin(self, text: str) -> None:
        self._held += text
        repeats = self._spec is not None and self._spec.repeats
        before, marker, rest = self._held.partition(self._begin)
        if marker and (repeats or not before.strip()):
            self._is_inside, self._held = True, ""
            self._read_reasoning(rest)
        elif repeats:
            self._held = self._held[-len(self._begin) :]
        else:
            self._held = self._held.lstrip()
            self._is_over = not self._begin.startswith(self._held)

    def _read_reasoning(self, text: str, token: int | None = None) -> None:
        """Read a token inside the reasoning; None for the rest of a token that began before."""
        if token is not None:
            self._pending.append(_Pending(token, len(self._held)))
        text = self._held + text
        found = [at for end in self._ends if (at := text.find(end)) >= 0]
        size = min(found) if found else len(text) - partial_marker(text, self._ends)
        self._count += sum(each.start < size for each in self._pending)
        self._held = text[size:]
        self._pending = [
            _Pending(each.token, each.start - size) for each in self._pending if each.start >= size
        ]
        if found:
            self._end()

    def _end(self) -> None:
        self._is_inside = False
        self._pending.clear()
        self._is_over = self._spec is None or not self._spec.repeats
        if not self._is_over:
            self._find_begin("")

    def _close_if_spent(self) -> None:
        spec = self._spec
        if spec is None or spec.budget is None or not self._is_inside or self._forced:
            return
        if self.num_tokens < spec.budget or not spec.closings:
            return
        closing = spec.closings[min(self._num_closings, len(spec.closings) - 1)]
        self._num_closings += 1
        self._forced.extend(closing[self._num_written(closing) :])

    def _num_written(self, closing: tuple[int, ...]) -> int:
        """How many tokens of `closing` the model has just written."""
        written = tuple(each.token for each in self._pending)
        lengths = range(min(len(written), len(closing) - 1), 0, -1)
        return next((each for each in lengths if written[-each:] == closing[:each]), 0)
