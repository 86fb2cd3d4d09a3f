"""Run states under random sequences of transitions, and under concurrent workers and callers."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from control_svc.agent.model import TurnResult
from control_svc.inference.turns import TurnUsage
from control_svc.items.model import FunctionCall
from control_svc.runs.model import (
    ErrorCode,
    IncompleteReason,
    Run,
    RunEnd,
    RunError,
    RunSettings,
    RunState,
    ToolOutput,
)
from svc_kit.errors import (
    InternalError,
    RunNotCancellable,
    ToolOutputsIncomplete,
    ToolOutputsNotAccepted,
)
from tests.support.job_machine import OpenDatabase, check_histories
from tests.support.run_machine import RunMachine

START = datetime(2026, 11, 22, tzinfo=UTC)
WAIT = timedelta(minutes=10)
ENDS = {
    RunState.FAILED: RunEnd(RunState.FAILED, RunError(ErrorCode.SERVER_ERROR, "no")),
    RunState.INCOMPLETE: RunEnd(RunState.INCOMPLETE, reason=IncompleteReason.MAX_COMPLETION_TOKENS),
}


@dataclass
class Expected:
    final: RunState | None = None
    tokens: int = 0
    was_cancelled: bool = False
    calls: list[str] = field(default_factory=list)


class RunStates(RuleBasedStateMachine):
    """Transitions by a worker, callers and the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.run = Run(
            id="run_1",
            thread_id="thread_1",
            assistant_id="asst_1",
            settings=RunSettings(model="m", seed=1),
            created_at=START,
            expires_at=START + WAIT,
        )
        self.expected = Expected()

    @rule(minutes=st.integers(0, 11))
    def advance_clock(self, minutes: int) -> None:
        """Only expiry depends on the time."""
        self.now += timedelta(minutes=minutes)

    @rule()
    def start(self) -> None:
        """Only a queued run becomes in progress."""
        before = self.run
        self.run = before.start(self.now)

        assert (self.run.state is RunState.IN_PROGRESS) == (
            before.state in (RunState.QUEUED, RunState.IN_PROGRESS)
        )

    @precondition(lambda self: self.run.state in (RunState.IN_PROGRESS, RunState.CANCELLING))
    @rule(tokens=st.integers(0, 50))
    def add_turn(self, tokens: int) -> None:
        """The tokens of a turn are counted once."""
        turn = TurnResult(number=self.run.num_turns, items=(), usage=TurnUsage(1, 0, tokens, 0))
        self.run = self.run.add_turn(turn)
        self.expected.tokens += tokens

    @precondition(lambda self: self.run.state is RunState.IN_PROGRESS)
    @rule(count=st.integers(1, 3))
    def require_action(self, count: int) -> None:
        """The run waits for outputs for a limited time."""
        names = [f"call_{index}" for index in range(count)]
        calls = [FunctionCall(call_id=name, name="f", arguments="{}") for name in names]
        self.run = self.run.require_action(calls, self.now, WAIT)
        self.expected.calls = names

        assert not self.run.is_overdue(self.now)

    @rule(data=st.data())
    def submit_outputs(self, data: st.DataObject) -> None:
        """Accepted while the run waits, all at once, in any order."""
        call_ids = st.sampled_from(["call_0", "call_1", "call_2", "call_x"])
        submitted = data.draw(st.lists(call_ids, max_size=4))
        outputs = [ToolOutput(call_id, "x") for call_id in submitted]
        before = self.run
        try:
            self.run = before.submit_outputs(outputs)
        except ToolOutputsNotAccepted:
            assert before.state is not RunState.REQUIRES_ACTION
        except ToolOutputsIncomplete:
            assert sorted(submitted) != sorted(self.expected.calls)
        else:
            assert sorted(submitted) == sorted(self.expected.calls)
            assert self.run.state is RunState.QUEUED

    @rule()
    def request_cancel(self) -> None:
        """Refused once the run has ended."""
        try:
            self.run = self.run.request_cancel()
        except RunNotCancellable:
            assert self.expected.final is not None
        else:
            self.expected.was_cancelled = True

    @rule(state=st.sampled_from([state for state in RunState if state.is_final]))
    def end(self, state: RunState) -> None:
        """A run ends once. It becomes cancelled if that was requested."""
        was_final = self.run.state.is_final
        try:
            self.run = self.run.end(ENDS.get(state, RunEnd(state)), self.now)
        except InternalError:
            assert was_final
            return
        assert not was_final
        final = RunState.CANCELLED if self.expected.was_cancelled else state
        assert self.run.state is final
        assert (self.run.error is not None) == (final is RunState.FAILED)
        assert (self.run.incomplete_reason is not None) == (final is RunState.INCOMPLETE)

    @invariant()
    def final_states_do_not_change(self) -> None:
        """A run that has ended keeps its state."""
        if self.expected.final is not None:
            assert self.run.state is self.expected.final
        elif self.run.state.is_final:
            self.expected.final = self.run.state

    @invariant()
    def fields_match_the_state(self) -> None:
        """Calls are set while the run waits, the end time once it has ended."""
        assert bool(self.run.calls) == (self.run.state is RunState.REQUIRES_ACTION)
        assert (self.run.ended_at is not None) == self.run.state.is_final
        assert (self.run.expires_at is None) == self.run.state.is_final
        assert self.run.usage.completion_tokens == self.expected.tokens


TestRunStates = RunStates.TestCase


def test_every_run_ends_once(on_sqlite: OpenDatabase) -> None:
    """While workers die and callers cancel or answer at any token; see `RunMachine`."""

    check_histories(RunMachine, on_sqlite, max_examples=6)
