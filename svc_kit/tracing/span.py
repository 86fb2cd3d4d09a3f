"""The current span of a call or job, and its W3C trace context.

Without an exporter (`exporter.py`) nothing is recorded: a span only passes on the trace context
that the caller sent, as metadata of further calls and in the rows of jobs.
"""

import contextvars
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

from svc_kit.errors import DomainError

TRACEPARENT: Final = "traceparent"
"""The HTTP header and the metadata key of the trace context."""
TRACEPARENT_LENGTH: Final = 55
_TRACEPARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_TRACE_ID: Final = slice(3, 35)
Attributes = Mapping[str, str | bool | int | float | Sequence[str]]


class SpanKind(StrEnum):
    INTERNAL = "INTERNAL"
    SERVER = "SERVER"
    """A call that was received."""
    CONSUMER = "CONSUMER"
    """Work that was queued by its parent."""


class Span:
    """A span that is not recorded."""

    is_recording = False
    records_content = False
    """Whether prompts and answers are recorded too."""

    def __init__(self, traceparent: str = "") -> None:
        """`traceparent` is the context for spans below this one; empty for none."""
        self.traceparent = traceparent

    @property
    def trace_id(self) -> str:
        """The id of the trace, 32 hexadecimal digits; empty for none."""
        return self.traceparent[_TRACE_ID]

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""

    def child(
        self, name: str, kind: SpanKind = SpanKind.INTERNAL, *, start_s: float | None = None
    ) -> "Span":
        """Start a span below this one. `start_s` is a time on the monotonic clock; default: now."""
        return self

    def linked_root(self, name: str, kind: SpanKind = SpanKind.INTERNAL) -> "Span":
        """Start a trace of its own that is linked to this span."""
        return self

    def end(
        self, *, name: str | None = None, error: str | None = None, end_s: float | None = None
    ) -> None:
        """End the span, with a better name if it has one by now. `error` is the reason of a
        failure; `end_s` is as `start_s` of `child`."""


class Tracer:
    """Starts the spans of calls and jobs in this process. This one records nothing."""

    def start(self, name: str, kind: SpanKind, traceparent: str = "") -> Span:
        """Start a span below the one that `traceparent` names, else a trace."""
        return Span(traceparent)


_NO_SPAN: Final = Span()
_current: contextvars.ContextVar[Span] = contextvars.ContextVar("span", default=_NO_SPAN)


def current_span() -> Span:
    return _current.get()


def set_current_span(span: Span) -> None:
    """Set the span of the running task, and of the tasks that it starts from now on."""
    _current.set(span)


@contextmanager
def running_span(span: Span) -> Iterator[Span]:
    """Make a span the current one during the block, and end it. Not for generators, which may be
    resumed in another context."""
    before = _current.set(span)
    error: str | None = None
    try:
        yield span
    except BaseException as raised:
        error = error_type(raised)
        raise
    finally:
        _current.reset(before)
        span.end(error=error)


def error_type(error: BaseException) -> str:
    """The reason of a DomainError, else the name of the exception."""
    return error.reason if isinstance(error, DomainError) else type(error).__name__


def valid_traceparent(text: str | bytes | None) -> str:
    """A trace context that a caller sent, or "" if it is none of version 00."""
    return text if isinstance(text, str) and _TRACEPARENT.fullmatch(text) else ""


def trace_metadata() -> tuple[tuple[str, str], ...]:
    """The metadata that puts a call below the current span."""
    traceparent = _current.get().traceparent
    return ((TRACEPARENT, traceparent),) if traceparent else ()
