"""The batch, its states and its lines: files of requests that run at the lowest priority.

    validating ──► in_progress ──► finalizing ──► completed
      │    │            │              └────────► expired     some lines did not run in time
      │    └────────────┴──► cancelling ────────► cancelled
      └──► failed                                             the input file is invalid

The states are those of OpenAI. Every line ends exactly once, so the final counts add up to the
total.
"""

import operator
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from control_svc.files.model import File, FilePurpose
from svc_kit.errors import BatchNotCancellable, BatchNotEnded, InvalidField, MissingField

DEFAULT_WINDOW: Final = timedelta(hours=24)
MAX_PROBLEMS: Final = 100
"""Maximum number of problems that are reported for a file."""


class BatchEndpoint(StrEnum):
    """The endpoints that a batch can call."""

    CHAT_COMPLETIONS = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    OLLAMA_CHAT = "/api/chat"
    OLLAMA_GENERATE = "/api/generate"
    OLLAMA_EMBED = "/api/embed"
    COMPLETION = "/completion"
    EMBEDDING = "/embedding"

    @property
    def embeds(self) -> bool:
        """Whether its lines have inputs to embed."""
        return self in (self.EMBEDDINGS, self.OLLAMA_EMBED, self.EMBEDDING)


class BatchState(StrEnum):
    """The status of a batch, as in the OpenAI API."""

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
        """Whether the state cannot change, except by a retry of the batch's job."""
        return self in FINAL_STATES


FINAL_STATES: Final = frozenset(
    {BatchState.FAILED, BatchState.COMPLETED, BatchState.EXPIRED, BatchState.CANCELLED}
)


class LineState(StrEnum):
    PENDING = "pending"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    """Not run before the window closed."""
    CANCELLED = "cancelled"
    """Not run before its batch was cancelled."""
    ABANDONED = "abandoned"
    """Not run before its batch failed."""


@dataclass(frozen=True, slots=True)
class LineProblem:
    """A validation error of the input file, or the failure of the batch.

    `line` counts from 1 and is None if the problem is not in one line.
    """

    code: str
    message: str
    param: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Token usage of one line or of a whole batch."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        return TokenUsage(*map(operator.add, astuple(self), astuple(other)))


NO_TOKENS: Final = TokenUsage()


@dataclass(frozen=True, slots=True)
class LineCounts:
    total: int = 0
    completed: int = 0
    failed: int = 0
    not_run: int = 0
    """Failed lines that did not run because the batch was cancelled or expired."""

    @property
    def pending(self) -> int:
        """Number of lines without a result."""
        return self.total - self.completed - self.failed


@dataclass(frozen=True, kw_only=True)
class Batch:
    id: str
    endpoint: BatchEndpoint
    input_file_id: str
    window: timedelta
    metadata: Mapping[str, str] = field(default_factory=dict)
    output_ttl: timedelta | None = None
    """Lifetime of the output files; None if they do not expire."""
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
    """When the window closed on lines that had not run; set before the state becomes EXPIRED."""
    cancelling_at: datetime | None = None
    cancelled_at: datetime | None = None

    @property
    def is_validated(self) -> bool:
        """Whether the input file is valid. Only then are output files written."""
        return self.in_progress_at is not None

    def fail_validation(self, problems: tuple[LineProblem, ...], now: datetime) -> "Batch":
        """Fail because of the input file. No effect while the batch is being cancelled."""
        if self.state is not BatchState.VALIDATING:
            return self
        return replace(self, state=BatchState.FAILED, problems=problems, failed_at=now)

    def start(self, model: str, num_lines: int, now: datetime) -> "Batch":
        """Start to run the validated lines. No effect while the batch is being cancelled."""
        if self.state is not BatchState.VALIDATING:
            return self
        counts = LineCounts(num_lines)
        return replace(
            self, state=BatchState.IN_PROGRESS, model=model, counts=counts, in_progress_at=now
        )

    def abandon(self, problem: LineProblem, now: datetime, *, is_last: bool) -> "Batch":
        """End the batch because its job is dead.

        Results of lines that have run are still to be written to files, and a cancelled batch is
        still to become CANCELLED; a closing job does that. If the dead job is the closing job
        (`is_last`), the batch fails without files.
        """
        if self.state.is_final:
            return self
        if is_last or self.state is BatchState.VALIDATING:
            problems = self.problems or (problem,)
            return replace(self, state=BatchState.FAILED, problems=problems, failed_at=now)
        if self.state is BatchState.CANCELLING:
            return self._end_pending()
        closed = self.add_results(0, self.counts.pending, NO_TOKENS)
        if self.state is not BatchState.IN_PROGRESS:
            return closed
        return replace(
            closed,
            state=BatchState.FINALIZING,
            problems=(problem,) if self.counts.pending else (),
            finalizing_at=now,
        )

    @property
    def abandoned_line_state(self) -> LineState:
        """The state that pending lines get when the job is dead."""
        is_cancelling = self.state is BatchState.CANCELLING
        return LineState.CANCELLED if is_cancelling else LineState.ABANDONED

    @property
    def can_reopen(self) -> bool:
        """Whether the batch failed without files. Its lines are then kept as long as its job."""
        has_files = self.output_file_id or self.error_file_id
        return self.state is BatchState.FAILED and not has_files

    def reopen(self, num_reopened: int) -> "Batch":
        """Return a failed batch to its previous state, with `num_reopened` lines pending again."""
        counts = replace(self.counts, failed=self.counts.failed - num_reopened)
        reopened = replace(self, counts=counts, problems=(), failed_at=None, finalizing_at=None)
        if self.cancelling_at is not None:
            return replace(reopened, state=BatchState.CANCELLING)
        state = BatchState.IN_PROGRESS if self.is_validated else BatchState.VALIDATING
        return replace(reopened, state=state)

    def add_results(self, completed: int, failed: int, usage: TokenUsage) -> "Batch":
        """Count lines that have ended, and their usage."""
        counts = self.counts
        counts = replace(
            counts, completed=counts.completed + completed, failed=counts.failed + failed
        )
        return replace(self, counts=counts, usage=self.usage + usage)

    def _end_pending(self) -> "Batch":
        """Count the pending lines as failed, because they will not run."""
        counts, pending = self.counts, self.counts.pending
        counts = replace(counts, failed=counts.failed + pending, not_run=counts.not_run + pending)
        return replace(self, counts=counts)

    def close(self, now: datetime) -> "Batch":
        """Stop running lines. Pending lines count as failed."""
        closed = self._end_pending()
        if self.state is not BatchState.IN_PROGRESS:
            return closed
        expired_at = now if self.counts.pending else self.expired_at
        return replace(
            closed, state=BatchState.FINALIZING, finalizing_at=now, expired_at=expired_at
        )

    @property
    def unrun_line_state(self) -> LineState:
        """The state that pending lines get when the batch closes."""
        is_cancelling = self.state is BatchState.CANCELLING
        return LineState.CANCELLED if is_cancelling else LineState.EXPIRED

    def finish(
        self, output_file_id: str | None, error_file_id: str | None, now: datetime
    ) -> "Batch":
        """Set the output files and the final state."""
        done = replace(self, output_file_id=output_file_id, error_file_id=error_file_id)
        if self.state is BatchState.CANCELLING:
            return replace(done, state=BatchState.CANCELLED, cancelled_at=now)
        if self.problems:
            return replace(done, state=BatchState.FAILED, failed_at=now)
        if self.expired_at is not None:
            return replace(done, state=BatchState.EXPIRED)
        return replace(done, state=BatchState.COMPLETED, completed_at=now)

    def check_ended(self) -> None:
        """Raise BatchNotEnded unless the state is final."""
        if not self.state.is_final:
            raise BatchNotEnded(batch=self.id, state=self.state.value)

    def cancel(self, now: datetime) -> "Batch":
        """Start to cancel the batch; idempotent. Raises BatchNotCancellable."""
        if self.state in (BatchState.CANCELLING, BatchState.CANCELLED):
            return self
        if self.state not in (BatchState.VALIDATING, BatchState.IN_PROGRESS):
            raise BatchNotCancellable(batch=self.id, state=self.state.value)
        return replace(self, state=BatchState.CANCELLING, cancelling_at=now)


@dataclass(frozen=True, kw_only=True)
class NewBatch:
    input_file_id: str
    endpoint: str
    window: timedelta | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    output_ttl: timedelta | None = None
    request_id: str = ""

    def check(self) -> None:
        """Validate the parameters. Raises MissingField or InvalidField."""
        for name in ("input_file_id", "endpoint"):
            if not getattr(self, name):
                raise MissingField(field=name)
        if self.endpoint not in tuple(BatchEndpoint):
            supported = ", ".join(BatchEndpoint)
            raise InvalidField(field="endpoint", problem=f"supported values are {supported}")

    def make(self, batch_id: str, now: datetime) -> Batch:
        """Create the batch in its initial state."""
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


def check_input(file: File) -> None:
    """Check that a file can be the input of a batch. Raises InvalidField."""
    if file.purpose is not FilePurpose.BATCH:
        problem = f"the file has purpose '{file.purpose.value}', but must have 'batch'"
        raise InvalidField(field="input_file_id", problem=problem)
