"""Fair shares: whoever has been served least is next.

Used for projects in the queue, for the step thread (generation and embeddings), and for tokens of
embedding batches.
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class FairShare(Generic[Key]):
    """What each taker was served, in any unit of cost."""

    def __init__(self) -> None:
        self._served: dict[Key, float] = {}
        self._live: Counter[Key] = Counter()

    def served(self, key: Key) -> float:
        """What a taker has had, comparable among those with work."""
        return self._served.get(key, 0.0)

    def enter(self, key: Key) -> None:
        """A taker has one more piece of work."""
        if not self._live[key]:
            self._served[key] = max(self.served(key), self._least())
        self._live[key] += 1

    def leave(self, key: Key) -> None:
        """A taker has one piece of work less; what no longer matters is forgotten."""
        self._live[key] -= 1
        if self._live[key]:
            return
        del self._live[key]
        least = self._least()
        self._served = {
            name: served
            for name, served in self._served.items()
            if self._live[name] or (self._live and served > least)
        }

    def charge(self, key: Key, cost: float) -> None:
        """Take note of what serving cost."""
        self._served[key] = self.served(key) + cost

    def _least(self) -> float:
        return min((self.served(key) for key, count in self._live.items() if count), default=0.0)


class FairTurns(Generic[Key]):
    """Fair shares between parties that ask in turn."""

    def __init__(self) -> None:
        self._shares: FairShare[Key] = FairShare()
        self._asking: dict[Key, None] = {}

    def next(self, ready: Iterable[Key]) -> Key:
        """The one of `ready` (at least one) that was served least; the first of equals."""
        asking = dict.fromkeys(ready)
        for key in self._asking.keys() - asking.keys():
            self._shares.leave(key)
        for key in asking.keys() - self._asking.keys():
            self._shares.enter(key)
        self._asking = asking
        return min(asking, key=self._shares.served)

    def charge(self, key: Key, cost: float) -> None:
        """Take note of what a turn cost."""
        self._shares.charge(key, cost)
