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
    """The events of '{stream}' have expired. Retrieve the object instead."""

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


class SlowReader(Aborted):
    """The stream was closed because {unread_events} events were not read for {limit_s} s. Read
    faster, or retry."""

    reason = "SLOW_READER"
    unread_events: int
    limit_s: float | str


class QueueFull(ResourceExhausted):
    """The server is busy: its queue has {depth} of at most {limit} {bound}. Retry later."""

    reason = "QUEUE_FULL"
    bound: str
    """What is counted: "requests", "tokens" or "characters"."""
    depth: int
    limit: int


class RateLimited(ResourceExhausted):
    """Rate limit reached: {limit}. Retry later."""

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
    """The request did not finish before its deadline (phase: {phase}). Allow more time."""

    reason = "DEADLINE_EXPIRED"
    phase: str
    """Where the request was: "queued", "prefill", "decode" or "call"."""


class Draining(Unavailable):
    """The server is shutting down. Retry the request."""

    reason = "DRAINING"


class UpstreamUnavailable(Unavailable):
    """The service '{service}' cannot be reached. Retry later."""

    reason = "UPSTREAM_UNAVAILABLE"
    service: str


class StorageFailed(Unavailable):
    """The server's storage failed: {problem}"""

    reason = "STORAGE_FAILED"
    problem: str


class InternalError(Internal):
    """The server had an error while processing your request. The cause is in the server's log under
    the request id {request_id}."""

    reason = "INTERNAL"
    request_id: str


class WorkAbandoned(Internal):
    """The process that ran this job stopped {attempts} times in a row before the job finished."""

    reason = "WORK_ABANDONED"
    attempts: int
