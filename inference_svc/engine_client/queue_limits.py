"""Limits of the queue of an engine; a full queue is refused here, as an ordinary error."""

from dataclasses import dataclass

from svc_kit.errors import QueueFull


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Bounds on what may wait."""

    requests: int
    tokens: int

    def check(self, *, requests: int, tokens: int, retry_after: float) -> None:
        """Whether so much may wait, with what is asked for now. Raises `QueueFull`; `retry_after`
        is a guess, in seconds."""
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
