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

    stream: str


class JobNotRetriable(FailedPrecondition):
    """The job '{job}' cannot be retried: {problem}"""

    job: str
    problem: str


class JobNotFound(NotFound):
    """No job found with id '{job}'."""

    job: str
    field: str = "job_id"


class SlowReader(Aborted):
    """The stream was closed because {unread_events} events were not read for {limit_s} s. Read
    faster, or retry."""

    unread_events: int
    limit_s: float | str


class QueueFull(ResourceExhausted):
    """The server is busy: its queue has {depth} of at most {limit} {bound}. Retry later."""

    bound: str
    """What is counted, such as "requests", "tokens", "characters" or "slow messages"."""
    depth: int
    limit: int
    held: int | None = None
    """How much of it is the project's."""
    share: int | None = None
    """How much the project may have while the queue is full; None: projects have no share."""

    def _describe(self) -> str:
        if self.share is None:
            return super()._describe()
        return (
            f"The server is busy: its queue would have {self.depth} {self.bound}, the maximum is "
            f"{self.limit}. Your project has {self.held} of its share of {self.share}. Retry later."
        )


class CallerCancelled(Cancelled):
    """The client cancelled the request or disconnected."""


class AbortedByOperator(Cancelled):
    """An operator aborted the request."""


class DeadlineExpired(DeadlineExceeded):
    """The request did not finish in time (phase: {phase}). Allow more time."""

    phase: str
    """Where the request was: "receive", "queued", "encode", "prefill", "decode" or "call"."""


class Draining(Unavailable):
    """The server is shutting down. Retry the request."""


class UpstreamUnavailable(Unavailable):
    """The service '{service}' cannot be reached. Retry later."""

    service: str


class StorageFailed(Unavailable):
    """The server's storage failed: {problem}"""

    problem: str


class InternalError(Internal):
    """The server had an error while processing your request. The cause is in the server's log under
    the request id {request_id}."""

    reason = "INTERNAL"
    request_id: str


class WorkAbandoned(Internal):
    """The process that ran this job stopped {attempts} times in a row before the job finished."""

    attempts: int


class BlobMissing(Internal):
    """The server has lost stored bytes (blob {blob}). Its operator finds what is missing with
    `corral check` and restores it from a backup."""

    blob: str
    """The key in the blob store."""
