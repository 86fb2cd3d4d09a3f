"""Measures several systems under one load, in alternating order."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from bench.measurement import CORRAL, Measurement

Turn = Callable[[int], Measurement]  # takes the number of the round
T = TypeVar("T")


def alternate(turns: Sequence[T], number: int) -> Sequence[T]:
    """Return the turns of a round, in reverse order in every second round."""
    return turns if number % 2 == 0 else turns[::-1]


class Contest:
    """Corral and other systems under one load.

    `rivals` are layouts of the same program: after the first round only the fastest is measured.
    `references` are measured in every round.
    """

    def __init__(
        self, own: Turn, rivals: Mapping[str, Turn], references: Mapping[str, Turn] | None = None
    ) -> None:
        self._own = own
        self._rivals = dict(rivals)
        self._references = dict(references or {})

    def round(self, number: int) -> Iterator[Measurement]:
        """Measure each remaining system once."""
        turns = [self._own, *self._references.values(), *self._rivals.values()]
        measured = [turn(number) for turn in alternate(turns, number)]
        yield from sorted(measured, key=lambda one: (one.system != CORRAL, one.system))
        speeds = {one.system: one.value for one in measured if one.system in self._rivals}
        if speeds:
            fastest = max(speeds, key=lambda system: speeds[system])
            self._rivals = {fastest: self._rivals[fastest]}


def run_rounds(contests: list[Contest], count: int) -> Iterator[Measurement]:
    """Measure every contest once per round, so that a slow period affects all loads equally."""
    for number in range(count):
        for contest in contests:
            yield from contest.round(number)
