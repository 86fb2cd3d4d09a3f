"""What was observed of measured streams, and the figures made from it."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


class LoadError(Exception):
    """A measured request did not do what it was asked to do, so nothing it measured counts."""


class Arrival(NamedTuple):
    """A piece of a stream that reached the client."""

    time: float  # seconds, time.perf_counter()
    tokens: int  # tokens it carries; where a server does not say it, counted as one


@dataclass(frozen=True)
class Stream:
    """One answered request. Times are seconds of `time.perf_counter()`."""

    sent: float
    ended: float
    arrivals: tuple[Arrival, ...]
    prompt_tokens: int
    completion_tokens: int

    @property
    def first_token_s(self) -> float:
        """Time from sending the request to the first piece of text."""
        return self.arrivals[0].time - self.sent

    @property
    def token_s(self) -> float:
        """Mean time a token after the first, seconds."""
        span = self.arrivals[-1].time - self.arrivals[0].time
        return span / max(1, self.completion_tokens - 1)

    @property
    def gaps_s(self) -> Iterator[float]:
        """Times between one piece of text and the next."""
        for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False):
            yield later.time - earlier.time


def check_streams(streams: Sequence[Stream], outputs: Sequence[int]) -> None:
    """Raise LoadError unless every request gave exactly the tokens it was asked for."""
    if len(streams) != len(outputs):
        raise LoadError(f"{len(streams)} of {len(outputs)} requests were answered")
    given = sorted(stream.completion_tokens for stream in streams)
    for tokens, asked in zip(given, sorted(outputs), strict=True):
        if tokens != asked:
            raise LoadError(f"{tokens} tokens came out, not {asked}")


@dataclass(frozen=True)
class LoadFigures:
    """A closed-loop load in figures. Times are milliseconds."""

    requests: int
    prompt_tokens: float  # mean, as the server counted
    wall_s: float
    tokens_per_s: float
    first_token_p50_ms: float
    first_token_p95_ms: float
    token_p50_ms: float  # mean time a token of each stream, then the median over streams
    gap_p50_ms: float
    gap_p99_ms: float

    @classmethod
    def of(cls, streams: Sequence[Stream]) -> "LoadFigures":
        """Sum up the streams of one load."""
        wall = max(s.ended for s in streams) - min(s.sent for s in streams)
        # noise of random weights may never make a whole character; such a stream has no arrivals
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
        """Return the figures rounded, for the report."""
        return {name: round(value, 3) for name, value in asdict(self).items()}


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value under which that share of the values lies; 0 where there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def decode_rate(streams: Sequence[Stream], least_overlap: float = 0.5, after: float = 0.0) -> float:
    """Return tokens per second while all streams were decoding and no prompt was being computed.

    That is from the first token of the stream that started last to the last token of the one that
    ended first, and nothing before the time `after`. Each stream's rate is taken between its own
    first and last arrival in there, so that it does not matter in which order the tokens of one
    step arrive.
    Raises LoadError where less than that share of the tokens was made then.
    """
    if not all(s.arrivals for s in streams):
        raise LoadError("a stream told of no token")
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
        raise LoadError(f"only {counted} tokens were made while all streams were decoding")
    return rate
