"""State transitions of a batch, and splitting of arbitrary input files."""

import itertools
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from control_svc.batches.lines import LineChecker, LineLimits, LineSplitter
from control_svc.batches.model import (
    FINAL_STATES,
    Batch,
    BatchEndpoint,
    BatchState,
    LineProblem,
    NewBatch,
    TokenUsage,
)
from svc_kit.errors import BatchNotCancellable

START = datetime(2026, 11, 22, tzinfo=UTC)
ALLOWED = {
    BatchState.VALIDATING: {BatchState.FAILED, BatchState.IN_PROGRESS, BatchState.CANCELLING},
    BatchState.IN_PROGRESS: {BatchState.FAILED, BatchState.FINALIZING, BatchState.CANCELLING},
    BatchState.FINALIZING: {BatchState.FAILED, BatchState.COMPLETED, BatchState.EXPIRED},
    BatchState.CANCELLING: {BatchState.FAILED, BatchState.CANCELLED},
    **{state: set() for state in FINAL_STATES},
    # By a retry of the job.
    BatchState.FAILED: {BatchState.VALIDATING, BatchState.IN_PROGRESS, BatchState.CANCELLING},
}
TOKENS = st.builds(TokenUsage, *[st.integers(0, 1000)] * 4)


class BatchStateMachine(RuleBasedStateMachine):
    """A batch whose worker can be interrupted, and whose owner can cancel at any time."""

    def __init__(self) -> None:
        super().__init__()
        new = NewBatch(input_file_id="file-1", endpoint=BatchEndpoint.EMBEDDINGS)
        self.now = START
        self.batch = new.make("batch_1", START)
        self.usage = TokenUsage()
        self.num_abandoned = 0

    def _transition(self, batch: Batch) -> None:
        before, after = self.batch.state, batch.state
        assert after is before or after in ALLOWED[before]
        self.batch = batch
        self.now += timedelta(seconds=1)

    @rule(num_lines=st.integers(1, 20))
    def start(self, num_lines: int) -> None:
        self._transition(self.batch.start("demo", num_lines, self.now))

    @rule()
    def fail_validation(self) -> None:
        self._transition(self.batch.fail_validation((LineProblem("empty_file", "x"),), self.now))

    @precondition(lambda self: self.batch.state is BatchState.IN_PROGRESS)
    @rule(completed=st.integers(0, 5), failed=st.integers(0, 5), usage=TOKENS)
    def add_results(self, completed: int, failed: int, usage: TokenUsage) -> None:
        """Pending lines end."""
        completed = min(completed, self.batch.counts.pending)
        failed = min(failed, self.batch.counts.pending - completed)
        self.usage += usage
        self._transition(self.batch.add_results(completed, failed, usage))

    @precondition(lambda self: self.batch.state not in {BatchState.VALIDATING, *FINAL_STATES})
    @rule()
    def close(self) -> None:
        """Running stops, possibly twice."""
        self._transition(self.batch.close(self.now))

    @precondition(
        lambda self: (
            self.batch.state in (BatchState.FINALIZING, BatchState.CANCELLING)
            and not self.batch.counts.pending
        )
    )
    @rule()
    def finish(self) -> None:
        self._transition(self.batch.finish("file-out", None, self.now))

    @rule()
    def cancel(self) -> None:
        try:
            self._transition(self.batch.cancel(self.now))
        except BatchNotCancellable:
            assert self.batch.state not in (BatchState.VALIDATING, BatchState.IN_PROGRESS)

    @rule(is_last=st.booleans())
    def abandon(self, is_last: bool) -> None:
        problem, before = LineProblem("work_abandoned", "x"), self.batch
        self._transition(before.abandon(problem, self.now, is_last=is_last))
        if (before.state, self.batch.state) == (BatchState.IN_PROGRESS, BatchState.FINALIZING):
            self.num_abandoned = before.counts.pending

    @precondition(lambda self: self.batch.can_reopen)
    @rule()
    def reopen(self) -> None:
        """An operator retries the job."""
        self._transition(self.batch.reopen(self.num_abandoned))
        self.num_abandoned = 0

    @invariant()
    def counts_add_up(self) -> None:
        """Counts never exceed the total, and finally add up to it."""
        counts = self.batch.counts
        assert counts.pending >= 0
        if self.batch.state in FINAL_STATES - {BatchState.FAILED}:
            assert counts.pending == 0
        assert self.batch.usage == self.usage

    @invariant()
    def timestamps_are_ordered(self) -> None:
        batch = self.batch
        path = [batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at]
        times = list(filter(None, path))
        assert times == sorted(times)
        if batch.state not in (BatchState.VALIDATING, BatchState.EXPIRED):
            assert getattr(batch, f"{batch.state.value}_at") is not None


TestBatchStates = BatchStateMachine.TestCase


@given(
    lines=st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), max_size=8),
    cuts=st.lists(st.integers(0, 250), max_size=10),
    limit=st.integers(1, 30),
)
def test_lines_do_not_depend_on_chunk_boundaries(
    lines: list[bytes], cuts: list[int], limit: int
) -> None:
    """Chunks of a stream can end anywhere."""
    content = b"\n".join(lines)
    whole = LineSplitter(limit)
    expected = [*whole.feed(content), *whole.flush()]
    bounds = sorted({0, *(min(cut, len(content)) for cut in cuts), len(content)})
    splitter = LineSplitter(limit)
    split = [
        line
        for start, end in itertools.pairwise(bounds)
        for line in splitter.feed(content[start:end])
    ]

    assert [*split, *splitter.flush()] == expected


@given(content=st.binary(max_size=300))
def test_any_bytes_are_lines_or_problems(content: bytes) -> None:
    """A file that is not a batch has problems and no valid line."""
    limits = LineLimits()
    splitter = LineSplitter(limits.line_bytes)
    checker = LineChecker(BatchEndpoint.CHAT_COMPLETIONS, limits)
    valid = [*checker.check(splitter.feed(content)), *checker.check(splitter.flush())]
    checker.finish()

    assert checker.problems
    assert not valid
