"""Races between callers of one run, where the rows of a run and its job are locked for real."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import event, inspect
from sqlalchemy.orm import ORMExecuteState
from sqlalchemy.util import await_only

from control_svc.db.transaction import Transaction, Transactions
from control_svc.jobs.model import AttemptResult, Outcome
from control_svc.runs.model import RunState, ToolOutput
from control_svc.runs.queries import RunRow
from control_svc.tools.model import FunctionTool
from svc_kit.errors import StaleGeneration
from tests.support.control import SetClock
from tests.support.jobs import PROJECT, a_database
from tests.support.runs import FUNCTION, RunWorld, begun, now, told
from tests.support.scripted_turns import ScriptedTurns, calls, in_order, says

ResultT = TypeVar("ResultT")


class Between(Transactions):
    """Transactions; in the first of them something happens once it knows that there is no job."""

    def __init__(self, transactions: Transactions, happens: Callable[[], Awaitable[Any]]) -> None:
        self._transactions = transactions
        self._happens: Callable[[], Awaitable[Any]] | None = happens

    async def read(self, work: Callable[[Transaction], Awaitable[ResultT]]) -> ResultT:
        """Read."""
        return await self._transactions.read(work)

    async def write(self, work: Callable[[Transaction], Awaitable[ResultT]]) -> ResultT:
        """Write."""

        async def watched(tx: Transaction) -> ResultT:
            event.listen(tx.session.sync_session, "do_orm_execute", self._before_statement)
            return await work(tx)

        return await self._transactions.write(watched)

    def _before_statement(self, statement: ORMExecuteState) -> None:
        """The run's row is locked right after its job's row was looked for."""
        if self._happens is None or "FOR UPDATE" not in str(statement.statement):
            return
        if statement.bind_mapper is inspect(RunRow):
            happens, self._happens = self._happens, None
            await_only(happens())


async def test_a_run_that_goes_on_meanwhile_is_cancelled_by_its_worker(
    postgres_url: str, tmp_path: Path
) -> None:
    """Outputs that come while a caller gives up: what the worker has begun is the worker's."""
    clock = SetClock()
    turns = ScriptedTurns(in_order(calls(FUNCTION, "{}"), says("Rain")))
    async with a_database(tmp_path, postgres_url, clock) as database:
        world = RunWorld(database, turns, clock)
        thread = await world.thread("Hi")
        assistant = await world.assistant(tools=(FunctionTool(name=FUNCTION),))
        async with world.process().working() as process:
            run = await begun(process, assistant, thread)
            await told(process, run)

        async def answer() -> None:
            await process.runs.submit(PROJECT, thread.id, run.id, [ToolOutput("call_1", "wet")], "")

        between: Any = Between(database.transactions, answer)
        racing = database._replace(transactions=between)
        other = RunWorld(racing, turns, clock).process("b")
        given_up = await other.runs.cancel(PROJECT, thread.id, run.id)
        assert given_up.state is RunState.CANCELLING

        async with world.process("c").working() as process:
            await told(process, run)
            assert (await now(process, run)).state is RunState.CANCELLED


async def test_giving_a_run_up_has_an_end_where_nobody_works_on_it(tmp_path: Path) -> None:
    """Its job is done, and the run is not: whatever did that, the caller hears of it."""
    clock = SetClock()
    async with a_database(tmp_path, None, clock) as database:
        world = RunWorld(database, ScriptedTurns(lambda _: says("Rain")), clock)
        thread, process = await world.thread("Hi"), world.process()
        run = await begun(process, await world.assistant(), thread)
        job = await process.leases.claim([process.handler.kind])
        assert job is not None
        await process.leases.end(job.claim, AttemptResult(Outcome.DONE))

        with pytest.raises(StaleGeneration, match=run.id):
            await process.runs.cancel(PROJECT, thread.id, run.id)
        assert (await now(process, run)).state is RunState.QUEUED
