"""Runs in tests: a database, a scripted model, and control processes that start and stop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from corral.control.v1 import run_service_pb2 as pb
from corral.inference.v1.generation_pb2 import RateLimitStatus
from prometheus_client import CollectorRegistry

from control_svc.agent.loop import AgentLoop
from control_svc.assistants.message_model import NewMessage, ThreadMessage
from control_svc.assistants.messages import MessageAdder
from control_svc.assistants.model import Assistant, AssistantSettings, Thread, ThreadSettings
from control_svc.assistants.queries import AssistantQueries, MessageQueries, ThreadQueries
from control_svc.base.ids import ASSISTANT, THREAD, IdSource
from control_svc.base.pagination import PageTokens, Window
from control_svc.db.engine import Database
from control_svc.db.transaction import Clock
from control_svc.event_log.model import BEFORE_FIRST
from control_svc.inference.turns import TurnClient, TurnRequest
from control_svc.items.model import Item, Role, Text
from control_svc.items.queries import TimelineQueries
from control_svc.jobs.dispatcher import Dispatcher
from control_svc.jobs.handler import JobHandler
from control_svc.jobs.model import JOBS_TOPIC, Job
from control_svc.limits.buckets import RateLimits
from control_svc.runs.model import NewRun, Run, ToolOutput
from control_svc.runs.queries import RunStepQueries
from control_svc.runs.service import Runs
from control_svc.runs.steps import RunStep
from control_svc.runs.transitions import RunExpiry
from control_svc.runs.worker import RunWorker
from control_svc.vector_stores.filters import Filter
from control_svc.vector_stores.search.model import Ranking, Search, SearchHit
from svc_kit.metrics import JobMetrics
from tests.support.control import SetClock
from tests.support.dispatching import NEVER_S
from tests.support.jobs import PROJECT, make_leases
from tests.support.streams import make_process

WAIT = timedelta(seconds=600)
FUNCTION = "get_weather"


class WordCounter:
    async def count(self, request: TurnRequest) -> int:
        """The number of words of all messages."""
        texts = (getattr(part, "text", "") for each in request.messages for part in each.parts)
        return sum(len(text.split()) for text in texts)


class FixedSearch:
    """A `Search` with fixed results, which records queries and filters."""

    def __init__(self, *hits: SearchHit) -> None:
        self.hits = list(hits)
        self.queries: list[Sequence[str]] = []
        self.filters: list[Filter | None] = []

    def check_model(self) -> None:
        """Do nothing: there is an embedding model."""

    async def search(
        self,
        project: str,
        store_ids: Sequence[str],
        queries: Sequence[str],
        max_results: int,
        filters: Filter | None,
        ranking: Ranking,
    ) -> list[SearchHit]:
        self.queries.append(queries)
        self.filters.append(filters)
        return self.hits


EMPTY_SEARCH = FixedSearch()


class NoLimits(RateLimits):
    async def of_caller(self, model: str) -> list[RateLimitStatus]:
        return []


class RunProcess:
    def __init__(
        self,
        database: Database,
        turns: TurnClient,
        ids: IdSource,
        clock: Clock,
        owner: str = "a",
        *,
        search: Search = EMPTY_SEARCH,
        counter: WordCounter | None = None,
        concurrency: int = 8,
    ) -> None:
        self.streams = make_process(database, owner)
        self.handler = RunWorker(
            database.transactions,
            self.streams.committer,
            AgentLoop(turns, ids, clock),
            counter or WordCounter(),
            concurrency,
            search,
            ids,
            clock,
            WAIT,
        )
        self.runs = Runs(
            database.transactions,
            ids,
            PageTokens(b"key"),
            clock,
            self.streams.reader,
            NoLimits(database.across_projects),
            MessageAdder(ids, clock, None),
            WAIT,
            seed=lambda: 7,
        )
        handlers: list[JobHandler] = [self.handler, RunExpiry()]
        dead_letter_handlers = {handler.kind: handler for handler in handlers}
        self.leases = make_leases(database.across_projects, owner, dead_letter_handlers)
        self.dispatcher = Dispatcher(
            self.leases, database.notifications, handlers, JobMetrics(CollectorRegistry())
        )

    @asynccontextmanager
    async def run_jobs(self, patience_s: float = 25) -> AsyncIterator["RunProcess"]:
        """Execute jobs meanwhile, for at most `patience_s`; release the remaining jobs then."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.streams.run())
            working = asyncio.create_task(self.dispatcher.run(NEVER_S))
            try:
                async with asyncio.timeout(patience_s):
                    yield self
            finally:
                self.dispatcher.stop()
                await working

    async def next_end(self) -> Job:
        return await self.leases.ended.get()


@dataclass
class RunWorld:
    """Creates assistants, threads and messages in a database."""

    database: Database
    turns: Any
    clock: SetClock
    """The clock of the database too."""

    def __post_init__(self) -> None:
        self.ids = IdSource(self.clock)

    def process(self, owner: str = "a", **options: Any) -> RunProcess:
        return RunProcess(self.database, self.turns, self.ids, self.clock, owner, **options)

    async def assistant(self, **settings: Any) -> Assistant:
        assistant = Assistant(
            id=self.ids.new(ASSISTANT),
            settings=AssistantSettings(**{"model": "m", **settings}),
            created_at=self.clock(),
        )
        await self.database.transactions.of(PROJECT).write(
            lambda tx: AssistantQueries(tx).add(assistant)
        )
        return assistant

    async def thread(self, *texts: str) -> Thread:
        thread = Thread(id=self.ids.new(THREAD), settings=ThreadSettings(), created_at=self.clock())
        await self.database.transactions.of(PROJECT).write(lambda tx: ThreadQueries(tx).add(thread))
        await self.add_messages(thread.id, *texts)
        return thread

    async def add_messages(self, thread_id: str, *texts: str) -> None:
        messages = [
            NewMessage(role=Role.USER, content=(Text(text=text),)).make(
                self.ids.new("msg_"), thread_id, self.clock()
            )
            for text in texts
        ]
        await self.database.transactions.of(PROJECT).write(
            lambda tx: MessageQueries(tx).add(messages)
        )

    def pass_time(self, **by: float) -> None:
        """Advance the clock, and start the jobs that are due."""
        self.clock.advance(**by)
        self.database.notifications.send([JOBS_TOPIC])

    async def messages(self, run: Run) -> list[ThreadMessage]:
        return await self.database.transactions.of(PROJECT).read(
            lambda tx: MessageQueries(tx).created_by_run(run.thread_id, run.id)
        )

    async def items(self, thread_id: str) -> list[Item]:
        entries = await self.database.transactions.of(PROJECT).read(
            lambda tx: TimelineQueries(tx).read(thread_id)
        )
        return [entry.item for entry in entries]

    async def get_thread(self, thread_id: str) -> Thread:
        return await self.database.transactions.of(PROJECT).read(
            lambda tx: ThreadQueries(tx).get(thread_id)
        )


Worlds = Callable[[Any], RunWorld]
"""Creates a `RunWorld` for a model."""


async def create_run(
    process: RunProcess, assistant: Assistant, thread: Thread, **options: Any
) -> Run:
    return await process.runs.create(
        PROJECT, thread.id, NewRun(assistant_id=assistant.id, **options)
    )


async def execute_run(
    process: RunProcess, assistant: Assistant, thread: Thread, **options: Any
) -> tuple[Run, list[pb.WatchRunResponse]]:
    """Create a run and wait until it ends or waits for outputs; return it with its events."""
    run = await create_run(process, assistant, thread, **options)
    events = await read_events(process, run)
    return await get_run(process, run), events


async def read_events(
    process: RunProcess, run: Run, after: int = BEFORE_FIRST
) -> list[pb.WatchRunResponse]:
    """Read the events of a run until it ends or waits for outputs."""
    request = pb.WatchRunRequest(thread_id=run.thread_id, run_id=run.id, after=after)
    batches = process.runs.WatchRun(PROJECT, request)
    return [event async for batch in batches for event in batch]


async def get_run(process: RunProcess, run: Run) -> Run:
    request = pb.GetRunRequest(thread_id=run.thread_id, run_id=run.id)
    return await process.runs.GetRun(PROJECT, request)


async def cancel_run(process: RunProcess, run: Run) -> Run:
    request = pb.CancelRunRequest(thread_id=run.thread_id, run_id=run.id)
    return await process.runs.CancelRun(PROJECT, request)


async def submit_outputs(
    process: RunProcess, run: Run, outputs: Sequence[ToolOutput], request_id: str = ""
) -> pb.SubmitToolOutputsResponse:
    request = pb.SubmitToolOutputsRequest(
        thread_id=run.thread_id, run_id=run.id, request_id=request_id
    )
    request.outputs.extend(pb.ToolOutput(call_id=each, output=text) for each, text in outputs)
    return await process.runs.SubmitToolOutputs(PROJECT, request)


async def list_steps(process: RunProcess, run: Run) -> Sequence[RunStep]:
    window = Window(100, newest_first=False)
    return await process.runs.transactions.of(PROJECT).read(
        lambda tx: RunStepQueries(tx).page(run.id, window)
    )


def event_names(events: Sequence[pb.WatchRunResponse]) -> list[str]:
    """Kind and state of each event, such as "run.created"; only the kind of a delta."""
    pairs = [(each.event, str(each.event.WhichOneof("event"))) for each in events]
    whats = [getattr(getattr(event, kind), "what", "") for event, kind in pairs]
    return [k.replace("_changed", f".{what}") for (_, k), what in zip(pairs, whats, strict=True)]
