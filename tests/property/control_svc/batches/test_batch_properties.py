"""Batches over all walks, and files over all ways that their bytes can come."""

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
    # By an operator's wish.
    BatchState.FAILED: {BatchState.VALIDATING, BatchState.IN_PROGRESS, BatchState.CANCELLING},
}
TOKENS = st.builds(TokenUsage, *[st.integers(0, 1000)] * 4)


class BatchWalk(RuleBasedStateMachine):
    """A batch under a worker that is broken off anywhere and an owner who gives up anytime."""

    def __init__(self) -> None:
        super().__init__()
        new = NewBatch(input_file_id="file-1", endpoint=BatchEndpoint.EMBEDDINGS)
        self.now = START
        self.batch = new.make("batch_1", START)
        self.ended = TokenUsage()
        self.num_abandoned = 0

    def _to(self, batch: Batch) -> None:
        before, after = self.batch.state, batch.state
        assert after is before or after in ALLOWED[before]
        self.batch = batch
        self.now += timedelta(seconds=1)

    @rule(num_lines=st.integers(1, 20))
    def begin(self, num_lines: int) -> None:
        """The file is good, or was found so before."""
        self._to(self.batch.begin("demo", num_lines, self.now))

    @rule()
    def refuse(self) -> None:
        """The file is bad."""
        self._to(self.batch.refuse((LineProblem("empty_file", "x"),), self.now))

    @precondition(lambda self: self.batch.state is BatchState.IN_PROGRESS)
    @rule(completed=st.integers(0, 5), failed=st.integers(0, 5), usage=TOKENS)
    def end_lines(self, completed: int, failed: int, usage: TokenUsage) -> None:
        """Some of the pending lines end."""
        completed = min(completed, self.batch.counts.pending)
        failed = min(failed, self.batch.counts.pending - completed)
        self.ended += usage
        self._to(self.batch.count(completed, failed, usage))

    @precondition(lambda self: self.batch.state not in {BatchState.VALIDATING, *FINAL_STATES})
    @rule()
    def close(self) -> None:
        """No line runs any more; also twice."""
        self._to(self.batch.close(self.now))

    @precondition(
        lambda self: (
            self.batch.state in (BatchState.FINALIZING, BatchState.CANCELLING)
            and not self.batch.counts.pending
        )
    )
    @rule()
    def finish(self) -> None:
        """The files are written."""
        self._to(self.batch.finish("file-out", None, self.now))

    @rule()
    def cancel(self) -> None:
        """The owner gives up, if it is not too late."""
        try:
            self._to(self.batch.cancel(self.now))
        except BatchNotCancellable:
            assert self.batch.state not in (BatchState.VALIDATING, BatchState.IN_PROGRESS)

    @rule(is_last=st.booleans())
    def abandon(self, is_last: bool) -> None:
        """The job dies."""
        problem, before = LineProblem("work_abandoned", "x"), self.batch
        self._to(before.abandon(problem, self.now, is_last=is_last))
        if (before.state, self.batch.state) == (BatchState.IN_PROGRESS, BatchState.FINALIZING):
            self.num_abandoned = before.counts.pending

    @precondition(lambda self: self.batch.can_begin_again)
    @rule()
    def revive(self) -> None:
        """An operator lets it begin again."""
        self._to(self.batch.revive(self.num_abandoned))
        self.num_abandoned = 0

    @invariant()
    def counts_add_up(self) -> None:
        """Never more lines than there are, and at the end none is left out."""
        counts = self.batch.counts
        assert counts.pending >= 0
        if self.batch.state in FINAL_STATES - {BatchState.FAILED}:
            assert counts.pending == 0
        assert self.batch.usage == self.ended

    @invariant()
    def each_state_has_its_time(self) -> None:
        """Those of the way here, in order."""
        batch = self.batch
        way = [batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at]
        times = [time for time in way if time is not None]
        assert times == sorted(times)
        if batch.state not in (BatchState.VALIDATING, BatchState.EXPIRED):
            assert getattr(batch, f"{batch.state.value}_at") is not None


TestBatchWalk = BatchWalk.TestCase


@given(
    lines=st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), max_size=8),
    cuts=st.lists(st.integers(0, 250), max_size=10),
    limit=st.integers(1, 30),
)
def test_lines_do_not_depend_on_how_their_bytes_come(
    lines: list[bytes], cuts: list[int], limit: int
) -> None:
    """However the stream is cut."""
    content = b"\n".join(lines)
    whole = LineSplitter(limit)
    expected = [*whole.feed(content), *whole.finish()]
    places = sorted({0, *(min(cut, len(content)) for cut in cuts), len(content)})
    splitter = LineSplitter(limit)
    found = [
        line
        for start, end in itertools.pairwise(places)
        for line in splitter.feed(content[start:end])
    ]

    assert [*found, *splitter.finish()] == expected


@given(content=st.binary(max_size=300))
def test_any_bytes_are_lines_or_problems(content: bytes) -> None:
    """Nothing but a problem comes of a file that is no batch."""
    limits = LineLimits()
    splitter = LineSplitter(limits.line_bytes)
    checker = LineChecker(BatchEndpoint.CHAT_COMPLETIONS, limits)
    good = [*checker.check(splitter.feed(content)), *checker.check(splitter.finish())]
    checker.finish()

    assert checker.problems
    assert not good
