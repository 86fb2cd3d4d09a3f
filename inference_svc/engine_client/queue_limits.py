"""Limits of an engine's queue."""

from dataclasses import dataclass

from svc_kit.errors import QueueFull


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The maximum number of waiting requests and of their prompt tokens."""

    requests: int
    tokens: int

    def check(self, *, requests: int, tokens: int, retry_after: float) -> None:
        """Raise `QueueFull` if a queue of this size, new request included, exceeds a limit.

        `retry_after` is an estimate in seconds, rounded and limited to 1 to 60.
        """
        for bound, depth, limit in (
            ("requests", requests, self.requests),
            ("tokens", tokens, self.tokens),
        ):
            if depth > limit:
                raise QueueFull(
                    bound=bound,
                    depth=depth,
                    limit=limit,
                    retry_after=round(min(max(retry_after, 1.0), 60.0), 1),
                )
