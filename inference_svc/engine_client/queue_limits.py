"""Limits of an engine's queue."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from svc_kit.queue_share import QueueEntry, check_queue


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The maximum number of waiting requests, of their prompt tokens, and of the bytes of pictures
    that requests hold, waiting or running, until an engine in text mode has answered them."""

    requests: int
    tokens: int
    media_bytes: int

    def check(
        self,
        waiting: Iterable[QueueEntry],
        new: Sequence[QueueEntry],
        *,
        requests: int,
        tokens: int,
        retry_after: float,
    ) -> None:
        """Raise `QueueFull` if a queue of this size, new requests included, exceeds a limit and a
        share. The amounts of `waiting` and `new` are prompt tokens.

        A project may always have one waiting request, however long its prompt is. `retry_after` is
        an estimate in seconds, rounded and limited to 1 to 60.
        """
        if requests <= self.requests and tokens <= self.tokens:
            return
        retry_after = _clamp(retry_after)
        queue, (project, priority, _) = list(waiting), new[0]
        check_queue(
            "requests",
            self.requests,
            [each._replace(amount=1) for each in queue],
            QueueEntry(project, priority, len(new)),
            depth=requests,
            retry_after=retry_after,
        )
        if any(each[:2] == (project, priority) for each in queue):
            check_queue(
                "tokens",
                self.tokens,
                queue,
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
