"""Races between callers of one run, with real row locks."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import ORMExecuteState
from sqlalchemy.util import await_only

from control_svc.db.transaction import (
    CrossProjectTransaction,
    CrossProjectTransactions,
    CrossWork,
)
from control_svc.jobs.model import AttemptResult, Outcome
from control_svc.runs.model import RunState, ToolOutput
from control_svc.runs.queries import RunRow
from control_svc.tools.model import FunctionTool
from svc_kit.errors import StaleGeneration
from tests.support.control import SetClock
from tests.support.jobs import open_test_database
from tests.support.runs import (
    FUNCTION,
    RunWorld,
    cancel_run,
    create_run,
    get_run,
    read_events,
    submit_outputs,
)
from tests.support.scripted_turns import ScriptedTurns, call_script, in_order, text_script

ResultT = TypeVar("ResultT")


class RacingTransactions(CrossProjectTransactions):
    """Transactions that call `race` before the first statement that locks a run, once the row of
    its job has been read."""

    def __init__(
        self, transactions: CrossProjectTransactions, race: Callable[[], Awaitable[Any]]
    ) -> None:
        self._transactions = transactions
        self._race: Callable[[], Awaitable[Any]] | None = race

    async def read(self, work: CrossWork[ResultT]) -> ResultT:
        return await self._transactions.read(work)

    async def write(self, work: CrossWork[ResultT]) -> ResultT:
        async def listen(tx: CrossProjectTransaction) -> ResultT:
            sa.event.listen(tx.session.sync_session, "do_orm_execute", self._before_statement)
            return await work(tx)

        return await self._transactions.write(listen)

    def _before_statement(self, statement: ORMExecuteState) -> None:
        if self._race is None or "FOR UPDATE" not in str(statement.statement):
            return
        if statement.bind_mapper is sa.inspect(RunRow):
            race, self._race = self._race, None
            await_only(race())


async def test_a_run_that_resumes_during_cancellation_is_cancelled_by_its_worker(
    postgres_url: str, tmp_path: Path
) -> None:
    """Outputs are submitted between two statements of the cancellation."""
    clock = SetClock()
    turns = ScriptedTurns(in_order(call_script(FUNCTION, "{}"), text_script("Rain")))
    async with open_test_database(tmp_path, postgres_url, clock) as database:
        world = RunWorld(database, turns, clock)
        thread = await world.thread("Hi")
        assistant = await world.assistant(tools=(FunctionTool(name=FUNCTION),))
        async with world.process().run_jobs() as process:
            run = await create_run(process, assistant, thread)
            await read_events(process, run)

        async def answer() -> None:
            await submit_outputs(process, run, [ToolOutput("call_1", "wet")])

        transactions: Any = RacingTransactions(database.across_projects, answer)
        racing = database._replace(across_projects=transactions)
        other = RunWorld(racing, turns, clock).process("b")
        cancelling = await cancel_run(other, run)
        assert cancelling.state is RunState.CANCELLING

        async with world.process("c").run_jobs() as process:
            await read_events(process, run)
            assert (await get_run(process, run)).state is RunState.CANCELLED


async def test_cancellation_of_an_inconsistent_run_fails(tmp_path: Path) -> None:
    """The job is done and the run is queued: the attempts are limited, and the caller gets an
    error."""
    clock = SetClock()
    async with open_test_database(tmp_path, None, clock) as database:
        world = RunWorld(database, ScriptedTurns(lambda _: text_script("Rain")), clock)
        thread, process = await world.thread("Hi"), world.process()
        run = await create_run(process, await world.assistant(), thread)
        job = await process.leases.claim([process.handler.kind])
        assert job is not None
        await process.leases.end(job.claim, AttemptResult(Outcome.DONE))

        with pytest.raises(StaleGeneration, match=run.id):
            await cancel_run(process, run)
        assert (await get_run(process, run)).state is RunState.QUEUED
