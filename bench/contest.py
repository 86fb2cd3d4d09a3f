"""One load for several systems, in turns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from bench.measurement import CORRAL, Measurement

Turn = Callable[[int], Measurement]  # takes the number of the round
T = TypeVar("T")


def in_order(turns: Sequence[T], number: int) -> Sequence[T]:
    """Return the turns of a round: who is first in one comes last in the next."""
    return turns if number % 2 == 0 else turns[::-1]


class Contest:
    """Corral and its peers under one load.

    Of the `rivals`, which are layouts of the same program, only the fastest of the first round goes
    on: the others would cost time and change nothing.
    """

    def __init__(
        self, own: Turn, rivals: Mapping[str, Turn], beside: Mapping[str, Turn] | None = None
    ) -> None:
        self._own = own
        self._rivals = dict(rivals)
        self._beside = dict(beside or {})

    def round(self, number: int) -> Iterator[Measurement]:
        """Measure everyone once."""
        turns = [self._own, *self._beside.values(), *self._rivals.values()]
        measured = [turn(number) for turn in in_order(turns, number)]
        yield from sorted(measured, key=lambda one: (one.system != CORRAL, one.system))
        reached = {one.system: one.value for one in measured if one.system in self._rivals}
        if reached:
            fastest = max(reached, key=lambda system: reached[system])
            self._rivals = {fastest: self._rivals[fastest]}


def rounds(contests: list[Contest], count: int) -> Iterator[Measurement]:
    """Measure every contest once a round, so that a slow minute does not fall on one load alone."""
    for number in range(count):
        for contest in contests:
            yield from contest.round(number)
