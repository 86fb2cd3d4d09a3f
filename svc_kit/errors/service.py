"""Errors of load, deadlines, jobs, storage and upstream services."""

from svc_kit.errors.kinds import (
    Aborted,
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    NotFound,
    ResourceExhausted,
    Unavailable,
)


class StreamExpired(FailedPrecondition):
    """The events of '{stream}' have expired; the object itself can still be read."""

    reason = "STREAM_EXPIRED"
    stream: str


class JobNotRetriable(FailedPrecondition):
    """The job '{job}' cannot be retried: {problem}"""

    reason = "JOB_NOT_RETRIABLE"
    job: str
    problem: str


class JobNotFound(NotFound):
    """No job found with id '{job}'."""

    reason = "JOB_NOT_FOUND"
    job: str
    field: str = "job_id"
    """What named the job."""


class SlowReader(Aborted):
    """The stream was not read for {limit_s} s while {unread_events} events were waiting."""

    reason = "SLOW_READER"
    unread_events: int
    limit_s: float | str


class QueueFull(ResourceExhausted):
    """The server is busy: its queue holds {depth} of at most {limit} {bound}. Try again later."""

    reason = "QUEUE_FULL"
    bound: str
    """What is counted: "requests", "tokens" or "characters"."""
    depth: int
    limit: int


class RateLimited(ResourceExhausted):
    """Rate limit reached: {limit}. Try again later."""

    reason = "RATE_LIMITED"
    limit: str
    """The limit in words, such as "60 requests a minute"."""


class CallerCancelled(Cancelled):
    """The client cancelled the request or disconnected."""

    reason = "CALLER_CANCELLED"


class AbortedByOperator(Cancelled):
    """An operator aborted the request."""

    reason = "ABORTED_BY_OPERATOR"


class DeadlineExpired(DeadlineExceeded):
    """The request's deadline passed (phase: {phase})."""

    reason = "DEADLINE_EXPIRED"
    phase: str
    """What the request was in: "queued", "prefill", "decode" or "call"."""


class Draining(Unavailable):
    """The server is shutting down. Retry the request."""

    reason = "DRAINING"


class UpstreamUnavailable(Unavailable):
    """The service '{service}' cannot be reached."""

    reason = "UPSTREAM_UNAVAILABLE"
    service: str


class StorageFailed(Unavailable):
    """The server's storage failed: {problem}"""

    reason = "STORAGE_FAILED"
    problem: str


class InternalError(Internal):
    """The server had an error while processing your request. Its log has the cause under request id
    {request_id}."""

    reason = "INTERNAL"
    request_id: str


class WorkAbandoned(Internal):
    """The process that ran this job stopped {attempts} times in a row before it had finished."""

    reason = "WORK_ABANDONED"
    attempts: int
