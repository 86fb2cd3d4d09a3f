"""The states of a run, whatever happens in whatever order: ends stay, calls are answered whole."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from control_svc.agent.model import TurnResult
from control_svc.inference.turns import TurnUsage
from control_svc.items.model import FunctionCall
from control_svc.runs.model import (
    ErrorCode,
    IncompleteReason,
    Run,
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
from tests.support.examples import examples
from tests.support.job_machine import BRIEF, OpenDatabase
from tests.support.run_machine import RunMachine

START = datetime(2026, 11, 22, tzinfo=UTC)
WAIT = timedelta(minutes=10)
ERROR = RunError(ErrorCode.SERVER_ERROR, "no")


@dataclass
class Seen:
    """What has happened to a run."""

    final: RunState | None = None
    tokens: int = 0
    was_cancelled: bool = False
    calls: list[str] = field(default_factory=list)


class RunStates(RuleBasedStateMachine):
    """A run, its worker, its callers and the clock."""

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
        self.seen = Seen()

    @rule(minutes=st.integers(0, 11))
    def time_passes(self, minutes: int) -> None:
        """Expiry alone looks at it."""
        self.now += timedelta(minutes=minutes)

    @rule()
    def a_worker_begins(self) -> None:
        """Only what is queued comes into progress."""
        before = self.run
        self.run = before.started(self.now)

        assert (self.run.state is RunState.IN_PROGRESS) == (
            before.state in (RunState.QUEUED, RunState.IN_PROGRESS)
        )

    @precondition(lambda self: self.run.state in (RunState.IN_PROGRESS, RunState.CANCELLING))
    @rule(tokens=st.integers(0, 50))
    def a_turn_ends(self, tokens: int) -> None:
        """Its tokens are counted once."""
        turn = TurnResult(number=self.run.num_turns, items=(), usage=TurnUsage(1, 0, tokens, 0))
        self.run = self.run.after(turn)
        self.seen.tokens += tokens

    @precondition(lambda self: self.run.state is RunState.IN_PROGRESS)
    @rule(count=st.integers(1, 3))
    def the_model_calls(self, count: int) -> None:
        """The run waits for what the calls give, for a while from now on."""
        names = [f"call_{index}" for index in range(count)]
        calls = [FunctionCall(call_id=name, name="f", arguments="{}") for name in names]
        self.run = self.run.waiting(calls, self.now, WAIT)
        self.seen.calls = names

        assert not self.run.is_overdue(self.now)

    @rule(data=st.data())
    def outputs_come(self, data: st.DataObject) -> None:
        """They are taken while the run waits, all at once, in any order."""
        some = st.lists(st.sampled_from(["call_0", "call_1", "call_2", "call_x"]), max_size=4)
        given = data.draw(some)
        outputs = [ToolOutput(name, "x") for name in given]
        before = self.run
        try:
            self.run = before.answered(outputs)
        except ToolOutputsNotAccepted:
            assert before.state is not RunState.REQUIRES_ACTION
        except ToolOutputsIncomplete:
            assert sorted(given) != sorted(self.seen.calls)
        else:
            assert sorted(given) == sorted(self.seen.calls)
            assert self.run.state is RunState.QUEUED

    @rule()
    def somebody_cancels(self) -> None:
        """It is refused once the run has ended."""
        try:
            self.run = self.run.cancelling()
        except RunNotCancellable:
            assert self.seen.final is not None
        else:
            self.seen.was_cancelled = True

    @rule(how=st.sampled_from(["completed", "failed", "incomplete", "cancelled", "expired"]))
    def it_ends(self, how: str) -> None:
        """Once; a run that was to be cancelled is cancelled, whatever it came to."""
        is_over = self.run.state.is_final
        try:
            if how == "failed":
                self.run = self.run.failed(ERROR, self.now)
            elif how == "incomplete":
                reason = IncompleteReason.MAX_COMPLETION_TOKENS
                self.run = self.run.incomplete(reason, self.now)
            else:
                self.run = self.run.ended(RunState(how), self.now)
        except InternalError:
            assert is_over
            return
        assert not is_over
        wanted = RunState.CANCELLED if self.seen.was_cancelled else RunState(how)
        assert self.run.state is wanted
        assert (self.run.error is not None) == (wanted is RunState.FAILED)
        assert (self.run.incomplete_reason is not None) == (wanted is RunState.INCOMPLETE)

    @invariant()
    def ends_stay(self) -> None:
        """What has ended does not change its state."""
        if self.seen.final is not None:
            assert self.run.state is self.seen.final
        elif self.run.state.is_final:
            self.seen.final = self.run.state

    @invariant()
    def what_is_known_fits_the_state(self) -> None:
        """Calls while it waits, an end once it has ended, and each token once."""
        assert bool(self.run.calls) == (self.run.state is RunState.REQUIRES_ACTION)
        assert (self.run.ended_at is not None) == self.run.state.is_final
        assert (self.run.expires_at is None) == self.run.state.is_final
        assert self.run.usage.completion_tokens == self.seen.tokens


TestRunStates = RunStates.TestCase


def test_every_run_ends_once(on_sqlite: OpenDatabase) -> None:
    """Whoever cancels, answers or dies at any token; see the machine for what is checked."""

    class OnSqlite(RunMachine):
        pass

    OnSqlite.open_database = on_sqlite
    run_state_machine_as_test(OnSqlite, settings=settings(BRIEF, max_examples=examples(10)))
