"""Fair queuing: the client served least is next.

Shares queues and pools between projects, the step thread between generation and embeddings, and
embedding batches between requests.
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class FairShare(Generic[Key]):
    """The service that each client has received, in any unit of cost."""

    def __init__(self) -> None:
        self._served: dict[Key, float] = {}
        self._num_active: Counter[Key] = Counter()

    def served(self, key: Key) -> float:
        """The service received by a client; comparable between clients with active work."""
        return self._served.get(key, 0.0)

    def enter(self, key: Key) -> None:
        """Add a work item of a client. An idle client earns no credit for the time it was idle."""
        if not self._num_active[key]:
            self._served[key] = max(self.served(key), self._minimum())
        self._num_active[key] += 1

    def leave(self, key: Key) -> None:
        """Remove a work item of a client, and drop counts that no longer affect the order."""
        self._num_active[key] -= 1
        if self._num_active[key]:
            return
        del self._num_active[key]
        minimum = self._minimum()
        self._served = {
            client: served
            for client, served in self._served.items()
            if self._num_active[client] or (self._num_active and served > minimum)
        }

    def charge(self, key: Key, cost: float) -> None:
        """Add the cost of serving a client."""
        self._served[key] = self._served.get(key, 0.0) + cost

    def _minimum(self) -> float:
        active = (key for key, count in self._num_active.items() if count)
        return min(map(self.served, active), default=0.0)


class FairTurns(Generic[Key]):
    """Chooses which of several clients has the next turn. The clients may change between turns."""

    def __init__(self) -> None:
        self._shares: FairShare[Key] = FairShare()
        self._ready: dict[Key, None] = {}

    def next(self, ready: Iterable[Key]) -> Key:
        """The client of `ready` (at least one) served least; the first one if equal."""
        clients = dict.fromkeys(ready)
        if clients != self._ready:
            for key in self._ready.keys() - clients.keys():
                self._shares.leave(key)
            for key in clients.keys() - self._ready.keys():
                self._shares.enter(key)
            self._ready = clients
        return min(clients, key=self._shares.served)

    def charge(self, key: Key, cost: float) -> None:
        self._shares.charge(key, cost)
