"""Limits of an engine's queue."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from svc_kit.queue_share import QueueEntry, check_queue


class WaitingRequests:
    """Sums over what waits, by project and priority. To ask for them costs as much however long the
    queue is, since callers ask again and again while it is full."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self._requests: Counter[tuple[str, int]] = Counter()
        self._tokens: Counter[tuple[str, int]] = Counter()

    def add(self, entry: QueueEntry) -> None:
        """Add a request, whose amount are its prompt tokens."""
        self._change(entry, 1)

    def remove(self, entry: QueueEntry) -> None:
        """Remove what was added."""
        self._change(entry, -1)

    def has(self, entry: QueueEntry) -> bool:
        """Whether a request of the same project and priority waits."""
        return entry[:2] in self._requests

    @property
    def requests(self) -> list[QueueEntry]:
        """The number of requests of each project and priority."""
        return [QueueEntry(*owner, number) for owner, number in self._requests.items()]

    @property
    def tokens(self) -> list[QueueEntry]:
        """Their prompt tokens."""
        return [QueueEntry(*owner, self._tokens[owner]) for owner in self._requests]

    def _change(self, entry: QueueEntry, sign: int) -> None:
        owner, amount = entry[:2], sign * entry.amount
        self.num_tokens += amount
        self._tokens[owner] += amount
        self._requests[owner] += sign
        if not self._requests[owner]:
            del self._requests[owner], self._tokens[owner]


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The maximum number of waiting requests, of their prompt tokens, and of the bytes of pictures
    that requests hold, waiting or running, until an engine in text mode has answered them."""

    requests: int
    tokens: int
    media_bytes: int

    def check(
        self,
        waiting: WaitingRequests,
        new: Sequence[QueueEntry],
        *,
        requests: int,
        tokens: int,
        wait_s: Callable[[], float],
    ) -> None:
        """Raise `QueueFull` if a queue of this size, new requests included, exceeds a limit and a
        share. The amounts of `new` are prompt tokens.

        A project may always have one waiting request, however long its prompt is. `wait_s`
        estimates when to try again, in seconds; the error has 1 to 60.
        """
        if requests <= self.requests and tokens <= self.tokens:
            return
        retry_after, (project, priority, _) = _clamp(wait_s()), new[0]
        check_queue(
            "requests",
            self.requests,
            waiting.requests,
            QueueEntry(project, priority, len(new)),
            depth=requests,
            retry_after=retry_after,
        )
        if waiting.has(new[0]):
            check_queue(
                "tokens",
                self.tokens,
                waiting.tokens,
                QueueEntry(project, priority, sum(each.amount for each in new)),
                depth=tokens,
                retry_after=retry_after,
            )

    def check_media(
        self, held: Sequence[QueueEntry], new: QueueEntry, *, retry_after: float
    ) -> None:
        """Raise `QueueFull` if the pictures of `new` beside those that are `held` exceed the limit
        and a share. The amounts are bytes; `retry_after` is as in `check`.

        A request is always accepted while none holds pictures.
        """
        if held:
            check_queue(
                "bytes of pictures",
                self.media_bytes,
                held,
                new,
                depth=sum(each.amount for each in held) + new.amount,
                retry_after=_clamp(retry_after),
            )


def _clamp(retry_after: float) -> float:
    return round(min(max(retry_after, 1.0), 60.0), 1)
