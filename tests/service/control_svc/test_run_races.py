"""Races between callers of one run, where the rows of a run and its job are locked for real."""

from collections.abc import Awaitable, Callable
from copy import copy
from pathlib import Path
from typing import Any, TypeVar

import pytest

from control_svc.domain.jobs import Ending, Job, Outcome
from control_svc.domain.ports import Repositories
from control_svc.domain.runs import RunState, ToolOutput
from control_svc.domain.tools import FunctionTool
from control_svc.storage.unit_of_work import SqlTransactions
from svc_kit.errors import StaleGeneration
from tests.support.control import SetClock
from tests.support.jobs import PROJECT, a_database
from tests.support.runs import FUNCTION, RunWorld, begun, now, told
from tests.support.scripted_turns import ScriptedTurns, calls, in_order, says

ResultT = TypeVar("ResultT")


class Between:
    """Transactions; in the first of them something happens once it knows that there is no job."""

    def __init__(
        self, transactions: SqlTransactions, happens: Callable[[], Awaitable[Any]]
    ) -> None:
        self.read = transactions.read
        self._transactions = transactions
        self._happens: Callable[[], Awaitable[Any]] | None = happens

    async def write(self, work: Callable[[Repositories], Awaitable[ResultT]]) -> ResultT:
        """Write."""
        return await self._transactions.write(lambda each: work(self._watched(each)))

    def _watched(self, repositories: Any) -> Any:
        watched, jobs = copy(repositories), copy(repositories.jobs)

        async def request_cancel(project: str, kind: str, subject: str) -> Job | None:
            job: Job | None = await repositories.jobs.request_cancel(project, kind, subject)
            happens, self._happens = self._happens, None
            if happens is not None:
                assert job is None
                await happens()
            return job

        jobs.request_cancel, watched.jobs = request_cancel, jobs
        return watched


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
        await process.leases.end(job.claim, Ending(Outcome.DONE))

        with pytest.raises(StaleGeneration, match=run.id):
            await process.runs.cancel(PROJECT, thread.id, run.id)
        assert (await now(process, run)).state is RunState.QUEUED
