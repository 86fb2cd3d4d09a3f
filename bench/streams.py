"""Recorded streams, and figures computed from them."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


class LoadError(Exception):
    """A measured request failed or gave an unexpected result. Its load is invalid."""


class Arrival(NamedTuple):
    """A piece of a stream received by the client."""

    time: float  # seconds, time.perf_counter()
    tokens: int  # tokens in it; 1 if the server does not report the number


@dataclass(frozen=True)
class Stream:
    """One completed request. Times are seconds of `time.perf_counter()`."""

    sent: float
    ended: float
    arrivals: tuple[Arrival, ...]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0  # over HTTP

    @property
    def first_token_s(self) -> float:
        """Time from sending the request to the first piece of text."""
        return self.arrivals[0].time - self.sent

    @property
    def token_s(self) -> float:
        """Mean time per token after the first, in seconds."""
        span = self.arrivals[-1].time - self.arrivals[0].time
        return span / max(1, self.completion_tokens - 1)

    @property
    def gaps_s(self) -> Iterator[float]:
        """Times between consecutive pieces of text."""
        for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False):
            yield later.time - earlier.time


def check_streams(streams: Sequence[Stream], outputs: Sequence[int]) -> None:
    """Raise LoadError unless every request produced exactly the requested number of tokens."""
    if len(streams) != len(outputs):
        raise LoadError(f"{len(streams)} of {len(outputs)} requests were completed")
    completed = sorted(stream.completion_tokens for stream in streams)
    for tokens, requested in zip(completed, sorted(outputs), strict=True):
        if tokens != requested:
            raise LoadError(f"a request produced {tokens} tokens instead of {requested}")


@dataclass(frozen=True)
class LoadFigures:
    """Figures of a closed-loop load."""

    requests: int
    prompt_tokens: float  # mean, as reported by the server
    wall_s: float
    tokens_per_s: float
    first_token_p50_ms: float
    first_token_p95_ms: float
    token_p50_ms: float  # median over the mean time per token of each stream
    gap_p50_ms: float
    gap_p99_ms: float

    @classmethod
    def from_streams(cls, streams: Sequence[Stream]) -> "LoadFigures":
        """Compute the figures of one load."""
        wall = max(s.ended for s in streams) - min(s.sent for s in streams)
        # Output of random weights may never complete a character; such a stream has no arrivals.
        shown = [s for s in streams if s.arrivals]
        first = [s.first_token_s * 1e3 for s in shown]
        gaps = [gap * 1e3 for s in shown for gap in s.gaps_s]
        return cls(
            requests=len(streams),
            prompt_tokens=statistics.fmean(s.prompt_tokens for s in streams),
            wall_s=wall,
            tokens_per_s=sum(s.completion_tokens for s in streams) / wall,
            first_token_p50_ms=quantile(first, 0.5),
            first_token_p95_ms=quantile(first, 0.95),
            token_p50_ms=quantile([s.token_s * 1e3 for s in shown], 0.5),
            gap_p50_ms=quantile(gaps, 0.5),
            gap_p99_ms=quantile(gaps, 0.99),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the rounded figures for the report."""
        return {name: round(value, 3) for name, value in asdict(self).items()}


def quantile(values: Sequence[float], share: float) -> float:
    """Return the quantile `share` (0 to 1) of the values, or 0 for no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def decode_rate(streams: Sequence[Stream], least_overlap: float = 0.5, after: float = 0.0) -> float:
    """Return tokens per second while all streams were decoding and no prompt was being computed.

    The interval starts at the last first token of all streams, but not before the time `after`, and
    ends at the first last token. The rate of each stream is measured between its own first and last
    arrival in the interval, so that the order of arrivals within one step has no effect.
    Raises LoadError if less than the share `least_overlap` of the tokens falls into the interval.
    """
    if not all(s.arrivals for s in streams):
        raise LoadError("a stream has no tokens")
    start = max(after, *(s.arrivals[0].time for s in streams))
    end = min(s.arrivals[-1].time for s in streams)
    rate, counted = 0.0, 0
    for stream in streams:
        inside = [a for a in stream.arrivals if start <= a.time <= end]
        tokens = sum(a.tokens for a in inside[1:])
        if tokens:
            rate += tokens / (inside[-1].time - inside[0].time)
            counted += tokens
    if counted < least_overlap * sum(s.completion_tokens for s in streams):
        raise LoadError(f"only {counted} tokens were generated while all streams were decoding")
    return rate
