"""Whose the cells are where all slots share one stream: a copied prefix is a reference, and its
cells count once.

Cells that were computed in one go have a generation. A slot is a line of generations: it holds the
first from position 0 on, the next from where it was copied or cut. Two slots share a cell if they
have its generation in common. Appending tokens changes nothing here, so a step costs nothing.
"""

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple


class _Part(NamedTuple):
    """From `start` on, until the next part, the cells are of this generation."""

    generation: int
    start: int


class CellBook:
    """The lines of all slots. `lengths` are how many cells each slot holds now."""

    def __init__(self, slots: int) -> None:
        self._generations = count()
        self._lines = [[self._new(0)] for _ in range(slots)]

    def _new(self, start: int) -> _Part:
        return _Part(next(self._generations), start)

    def cut(self, slot: int, length: int) -> None:
        """What a slot computes behind `length` from now on is its own."""
        line = [part for part in self._lines[slot] if part.start < length]
        others = (other for index, other in enumerate(self._lines) if index != slot)
        if not line or any(line[-1] in other for other in others):
            line.append(self._new(length))
        self._lines[slot] = line

    def share(self, source: int, target: int, length: int) -> None:
        """`target` holds the first `length` cells of `source`, and nothing else."""
        self._lines[target] = self._lines[source]
        self.cut(target, length)

    def used(self, lengths: Sequence[int]) -> int:
        """How many cells are in use."""
        ends: dict[_Part, int] = {}
        for line, length in zip(self._lines, lengths, strict=True):
            for part, following in zip(line, [*line[1:], None], strict=True):
                end = length if following is None else min(following.start, length)
                if end > part.start:
                    ends[part] = max(ends.get(part, 0), end)
        return sum(end - part.start for part, end in ends.items())

    def freed_by(self, slot: int, lengths: Sequence[int]) -> int:
        """How many cells would be free if a slot were emptied."""
        others = [0 if index == slot else length for index, length in enumerate(lengths)]
        return self.used(lengths) - self.used(others)
