"""Batches: files of requests that run when there is time, and the states of that work.

    validating ──► in_progress ──► finalizing ──► completed
      │    │            │              └────────► expired     the window closed on some lines
      │    └────────────┴──► cancelling ────────► cancelled
      └──► failed                                             the file cannot be used

The states are OpenAI's. Every line ends exactly once, so at the end the counts add up to the total.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from control_svc.base.validation import check_metadata, check_request_id, check_ttl
from control_svc.files.model import File, FilePurpose
from svc_kit.errors import BatchNotCancellable, InvalidField, MissingField, OutOfRange

DEFAULT_WINDOW: Final = timedelta(hours=24)
SHORTEST_WINDOW: Final = timedelta(hours=1)
LONGEST_WINDOW: Final = timedelta(days=7)
MAX_PROBLEMS: Final = 100
"""The maximum number of reported problems of a file."""


class BatchEndpoint(StrEnum):
    """What the requests of a batch can be for."""

    CHAT_COMPLETIONS = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    RESPONSES = "/v1/responses"


class BatchState(StrEnum):
    """Where a batch is, in OpenAI's words."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether nothing will change any more."""
        return self in FINAL_STATES


FINAL_STATES: Final = frozenset(
    {BatchState.FAILED, BatchState.COMPLETED, BatchState.EXPIRED, BatchState.CANCELLED}
)


class LineState(StrEnum):
    """How a line has ended, if it has."""

    PENDING = "pending"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    """Not run before the window closed."""
    CANCELLED = "cancelled"
    """Not run before its batch was given up."""
    ABANDONED = "abandoned"
    """Not run before its batch failed."""


@dataclass(frozen=True, slots=True)
class LineProblem:
    """Something wrong with a file; `line` counts from 1, None: the file as a whole."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of a line, or of all lines of a batch."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        return TokenUsage(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


NO_TOKENS: Final = TokenUsage()


@dataclass(frozen=True, slots=True)
class LineCounts:
    """How many lines a batch has, and how many have ended."""

    total: int = 0
    completed: int = 0
    failed: int = 0

    @property
    def pending(self) -> int:
        """How many have not."""
        return self.total - self.completed - self.failed


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch as it is stored."""

    id: str
    endpoint: BatchEndpoint
    input_file_id: str
    window: timedelta
    metadata: Mapping[str, str] = field(default_factory=dict)
    output_ttl: timedelta | None = None
    """How long its files are kept; None: for ever."""
    state: BatchState = BatchState.VALIDATING
    model: str = ""
    problems: tuple[LineProblem, ...] = ()
    counts: LineCounts = LineCounts()
    usage: TokenUsage = NO_TOKENS
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: datetime
    expires_at: datetime
    in_progress_at: datetime | None = None
    finalizing_at: datetime | None = None
    completed_at: datetime | None = None
    failed_at: datetime | None = None
    expired_at: datetime | None = None
    """When the window closed on lines that had not run; known before the state is."""
    cancelling_at: datetime | None = None
    cancelled_at: datetime | None = None

    @property
    def has_begun(self) -> bool:
        """Whether its lines were found good; others leave no files."""
        return self.in_progress_at is not None

    def refuse(self, problems: tuple[LineProblem, ...], now: datetime) -> "Batch":
        """The batch whose file cannot be used; one that is being cancelled stays so."""
        if self.state is not BatchState.VALIDATING:
            return self
        return replace(self, state=BatchState.FAILED, problems=problems, failed_at=now)

    def begin(self, model: str, num_lines: int, now: datetime) -> "Batch":
        """The batch whose lines are all stored and checked; one being cancelled stays so."""
        if self.state is not BatchState.VALIDATING:
            return self
        counts = LineCounts(num_lines)
        return replace(
            self, state=BatchState.IN_PROGRESS, model=model, counts=counts, in_progress_at=now
        )

    def abandon(self, problem: LineProblem, now: datetime, *, is_last: bool) -> "Batch":
        """The batch whose job is dead, for a reason that no line has.

        What has run belongs into files, and what was given up shall end so: another job is for
        that. Where it is that job which is dead (`is_last`), the batch fails without files.
        """
        if self.state.is_final:
            return self
        if is_last or self.state is BatchState.VALIDATING:
            problems = self.problems or (problem,)
            return replace(self, state=BatchState.FAILED, problems=problems, failed_at=now)
        if self.state is not BatchState.IN_PROGRESS:
            return self.count(0, self.counts.pending, NO_TOKENS)
        return replace(
            self.count(0, self.counts.pending, NO_TOKENS),
            state=BatchState.FINALIZING,
            problems=(problem,) if self.counts.pending else (),
            finalizing_at=now,
        )

    @property
    def abandoned_lines(self) -> LineState:
        """What its pending lines become when its job is dead."""
        is_given_up = self.state is BatchState.CANCELLING
        return LineState.CANCELLED if is_given_up else LineState.ABANDONED

    @property
    def can_begin_again(self) -> bool:
        """Whether it failed without files: then its lines are kept as long as its dead job."""
        has_files = self.output_file_id or self.error_file_id
        return self.state is BatchState.FAILED and not has_files

    def revive(self, num_reopened: int) -> "Batch":
        """The failed batch where it was, with so many lines to run that its failure had ended."""
        counts = replace(self.counts, failed=self.counts.failed - num_reopened)
        revived = replace(self, counts=counts, problems=(), failed_at=None, finalizing_at=None)
        if self.cancelling_at is not None:
            return replace(revived, state=BatchState.CANCELLING)
        state = BatchState.IN_PROGRESS if self.has_begun else BatchState.VALIDATING
        return replace(revived, state=state)

    def count(self, completed: int, failed: int, usage: TokenUsage) -> "Batch":
        """The batch after so many more lines have ended."""
        counts = self.counts
        counted = LineCounts(counts.total, counts.completed + completed, counts.failed + failed)
        return replace(self, counts=counted, usage=self.usage + usage)

    def close(self, now: datetime) -> "Batch":
        """The batch when no more line will run; what is pending counts as failed."""
        closed = self.count(0, self.counts.pending, NO_TOKENS)
        if self.state is not BatchState.IN_PROGRESS:
            return closed
        expired_at = now if self.counts.pending else self.expired_at
        return replace(
            closed, state=BatchState.FINALIZING, finalizing_at=now, expired_at=expired_at
        )

    @property
    def unrun(self) -> LineState:
        """What its pending lines become when it closes."""
        cancelled = self.state is BatchState.CANCELLING
        return LineState.CANCELLED if cancelled else LineState.EXPIRED

    def finish(
        self, output_file_id: str | None, error_file_id: str | None, now: datetime
    ) -> "Batch":
        """The batch whose files are written."""
        done = replace(self, output_file_id=output_file_id, error_file_id=error_file_id)
        if self.state is BatchState.CANCELLING:
            return replace(done, state=BatchState.CANCELLED, cancelled_at=now)
        if self.problems:
            return replace(done, state=BatchState.FAILED, failed_at=now)
        if self.expired_at is not None:
            return replace(done, state=BatchState.EXPIRED)
        return replace(done, state=BatchState.COMPLETED, completed_at=now)

    def cancel(self, now: datetime) -> "Batch":
        """The batch given up; a second time changes nothing. Raises BatchNotCancellable."""
        if self.state in (BatchState.CANCELLING, BatchState.CANCELLED):
            return self
        if self.state not in (BatchState.VALIDATING, BatchState.IN_PROGRESS):
            raise BatchNotCancellable(batch=self.id, state=self.state.value)
        return replace(self, state=BatchState.CANCELLING, cancelling_at=now)


@dataclass(frozen=True, kw_only=True)
class NewBatch:
    """What a caller asks for."""

    input_file_id: str
    endpoint: str
    window: timedelta | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    output_ttl: timedelta | None = None
    request_id: str = ""

    def check(self) -> None:
        """Raises MissingField, InvalidField, OutOfRange or TooLong."""
        for name in ("input_file_id", "endpoint"):
            if not getattr(self, name):
                raise MissingField(field=name)
        if self.endpoint not in tuple(BatchEndpoint):
            supported = ", ".join(BatchEndpoint)
            raise InvalidField(field="endpoint", problem=f"supported values are {supported}")
        self._check_window()
        check_metadata(self.metadata)
        check_ttl(self.output_ttl, "output_ttl")
        check_request_id(self.request_id)

    def make(self, batch_id: str, now: datetime) -> Batch:
        """The batch at its beginning."""
        window = self.window or DEFAULT_WINDOW
        return Batch(
            id=batch_id,
            endpoint=BatchEndpoint(self.endpoint),
            input_file_id=self.input_file_id,
            window=window,
            metadata=dict(self.metadata),
            output_ttl=self.output_ttl,
            created_at=now,
            expires_at=now + window,
        )

    def _check_window(self) -> None:
        if self.window is not None and not SHORTEST_WINDOW <= self.window <= LONGEST_WINDOW:
            raise OutOfRange(
                field="completion_window",
                value=int(self.window.total_seconds()),
                minimum=int(SHORTEST_WINDOW.total_seconds()),
                maximum=int(LONGEST_WINDOW.total_seconds()),
            )


def check_input(file: File) -> None:
    """That a file may be the input of a batch. Raises InvalidField."""
    if file.purpose is not FilePurpose.BATCH:
        problem = f"the file is of purpose '{file.purpose.value}', a batch needs one of 'batch'"
        raise InvalidField(field="input_file_id", problem=problem)
