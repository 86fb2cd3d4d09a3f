"""Whose turn it is: the least served first, so that nobody who wants something waits for long.

Used for the step thread's time (text generation beside embeddings) and for the tokens of embedding
batches (projects beside each other). Who comes after a pause starts level with the others: rest is
no credit, and a debt stays.
"""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Turns(Generic[Key]):
    """What each taker was served, in any unit of cost."""

    def __init__(self) -> None:
        self._served: dict[Key, float] = {}
        self._level = 0.0

    def next(self, ready: Iterable[Key]) -> Key:
        """The one of `ready` (at least one) that was served least; the first of equals."""
        takers = list(ready)
        present = [self._served[key] for key in takers if key in self._served]
        self._level = max(self._level, min(present, default=self._level))
        # Whoever is away keeps a debt only, so this holds no more than the takers and the indebted.
        away = {key: cost for key, cost in self._served.items() if cost > self._level}
        self._served = away | {key: max(away.get(key, 0.0), self._level) for key in takers}
        return min(takers, key=self._served.__getitem__)

    def charge(self, key: Key, cost: float) -> None:
        """Take note of what a turn cost."""
        self._served[key] = self._served.get(key, self._level) + cost
