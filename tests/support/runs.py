"""Runs at work in a test: a database, a model that follows scripts, and control processes that come
and go."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from prometheus_client import CollectorRegistry

from control_svc.agent.loop import AgentLoop
from control_svc.assistants.message_model import NewMessage, ThreadMessage
from control_svc.assistants.model import Assistant, AssistantSettings, Thread, ThreadSettings
from control_svc.assistants.queries import AssistantQueries, MessageQueries, ThreadQueries
from control_svc.base.ids import ASSISTANT, THREAD, IdSource
from control_svc.base.pagination import PageRequest, PageTokens
from control_svc.db.engine import Database
from control_svc.db.transaction import Clock
from control_svc.event_log.model import BEFORE_FIRST
from control_svc.inference.turns import TurnClient, TurnRequest
from control_svc.items.model import Item, Role, Text
from control_svc.items.queries import TimelineQueries
from control_svc.jobs.dispatcher import Dispatcher
from control_svc.jobs.handler import JobHandler
from control_svc.jobs.model import JOBS_TOPIC, Job
from control_svc.runs.model import NewRun, Run
from control_svc.runs.queries import RunEventDocuments
from control_svc.runs.service import NumberedEvent, Runs
from control_svc.runs.steps import RunStep
from control_svc.runs.transitions import RunExpiry
from control_svc.runs.worker import RunHandler, RunTools
from control_svc.vector_stores.filters import Filter
from control_svc.vector_stores.search.model import Ranking, Search, SearchHit
from svc_kit.metrics import JobMetrics
from tests.support.control import SetClock
from tests.support.dispatching import NEVER_S
from tests.support.jobs import PROJECT, make_leases
from tests.support.streams import make_process

WAIT = timedelta(seconds=600)
FUNCTION = "get_weather"


async def _one_a_word(request: TurnRequest) -> int:
    texts = (getattr(part, "text", "") for message in request.messages for part in message.parts)
    return sum(len(text.split()) for text in texts)


@dataclass
class WordCounter:
    """A `TokenCounter` for which each word is a token."""

    counted: list[TurnRequest] = field(default_factory=list)

    async def count(self, request: TurnRequest) -> int:
        """The words of all messages."""
        self.counted.append(request)
        return await _one_a_word(request)


class FixedSearch:
    """A `Search` that finds the same, whatever it is asked."""

    def __init__(self, *hits: SearchHit) -> None:
        self.hits = list(hits)
        self.asked: list[Sequence[str]] = []
        self.filters: list[Filter | None] = []

    def check_model(self) -> None:
        """There is one."""

    async def search(
        self,
        project: str,
        store_ids: Sequence[str],
        queries: Sequence[str],
        max_results: int,
        filters: Filter | None,
        ranking: Ranking,
    ) -> list[SearchHit]:
        """The passages."""
        self.asked.append(queries)
        self.filters.append(filters)
        return self.hits


NOTHING_FOUND = FixedSearch()


class RunProcess:
    """A control process that works on runs."""

    def __init__(
        self,
        database: Database,
        turns: TurnClient,
        ids: IdSource,
        clock: Clock,
        owner: str = "a",
        *,
        search: Search = NOTHING_FOUND,
        counter: WordCounter | None = None,
        concurrency: int = 8,
    ) -> None:
        self.streams = make_process(database, owner)
        codec = RunEventDocuments()
        self.handler = RunHandler(
            database.transactions,
            self.streams.committer,
            codec,
            AgentLoop(turns, ids, clock),
            counter or WordCounter(),
            RunTools(search),
            ids,
            clock,
            wait=WAIT,
            concurrency=concurrency,
        )
        self.runs = Runs(
            database.transactions,
            self.streams.reader,
            codec,
            ids,
            PageTokens(b"key"),
            clock,
            wait=WAIT,
            seed=lambda: 7,
        )
        handlers: list[JobHandler] = [self.handler, RunExpiry(codec)]
        dead_letter_handlers = {handler.kind: handler for handler in handlers}
        self.leases = make_leases(database.transactions, owner, dead_letter_handlers)
        self.dispatcher = Dispatcher(
            self.leases, database.notifications, handlers, JobMetrics(CollectorRegistry())
        )

    @asynccontextmanager
    async def working(self, patience_s: float = 25) -> AsyncIterator["RunProcess"]:
        """Work meanwhile, for at most so long; what is left then is given back."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.streams.running())
            working = asyncio.create_task(self.dispatcher.run(NEVER_S))
            try:
                async with asyncio.timeout(patience_s):
                    yield self
            finally:
                self.dispatcher.stop()
                await working

    async def an_end(self) -> Job:
        """The next job whose attempt ends."""
        return await self.leases.ended.get()


@dataclass
class RunWorld:
    """An assistant, threads and their runs in a database."""

    database: Database
    turns: Any
    clock: SetClock
    """The database's too."""

    def __post_init__(self) -> None:
        self.ids = IdSource(self.clock)

    def process(self, owner: str = "a", **about: Any) -> RunProcess:
        """A control process."""
        return RunProcess(self.database, self.turns, self.ids, self.clock, owner, **about)

    async def assistant(self, **about: Any) -> Assistant:
        """A new assistant."""
        made = Assistant(
            id=self.ids.new(ASSISTANT),
            settings=AssistantSettings(**{"model": "m", **about}),
            created_at=self.clock(),
        )
        await self.database.transactions.write(
            lambda each: AssistantQueries(each).add(PROJECT, made)
        )
        return made

    async def thread(self, *texts: str) -> Thread:
        """A new thread, with what its user says."""
        made = Thread(id=self.ids.new(THREAD), settings=ThreadSettings(), created_at=self.clock())
        await self.database.transactions.write(lambda each: ThreadQueries(each).add(PROJECT, made))
        await self.say(made.id, *texts)
        return made

    async def say(self, thread_id: str, *texts: str) -> None:
        """The user says something."""
        messages = [
            NewMessage(role=Role.USER, content=(Text(text=text),)).make(
                self.ids.new("msg_"), thread_id, self.clock()
            )
            for text in texts
        ]
        await self.database.transactions.write(
            lambda each: MessageQueries(each).add(PROJECT, messages)
        )

    def pass_time(self, **by: float) -> None:
        """Let time pass, and what has become due begin."""
        self.clock.advance(**by)
        self.database.notifications.send([JOBS_TOPIC])

    async def messages(self, run: Run) -> list[ThreadMessage]:
        """What a run has written."""
        return await self.database.transactions.read(
            lambda each: MessageQueries(each).created_by_run(PROJECT, run.thread_id, run.id)
        )

    async def items(self, thread_id: str) -> list[Item]:
        """Everything of a thread."""
        placed = await self.database.transactions.read(
            lambda each: TimelineQueries(each).read(PROJECT, thread_id)
        )
        return [each.item for each in placed]

    async def thread_now(self, thread_id: str) -> Thread:
        """A thread as it is."""
        return await self.database.transactions.read(
            lambda each: ThreadQueries(each).get(PROJECT, thread_id)
        )


Worlds = Callable[[Any], RunWorld]
"""Makes one, for a model."""


async def begun(process: RunProcess, assistant: Assistant, thread: Thread, **about: Any) -> Run:
    """A run, created."""
    return await process.runs.create(PROJECT, thread.id, NewRun(assistant_id=assistant.id, **about))


async def told(process: RunProcess, run: Run, after: int = BEFORE_FIRST) -> list[NumberedEvent]:
    """All events of a run, until it has ended or waits."""
    return [event async for event in process.runs.watch(PROJECT, run.thread_id, run.id, after)]


async def now(process: RunProcess, run: Run) -> Run:
    """A run as it is."""
    return await process.runs.get(PROJECT, run.thread_id, run.id)


async def steps_of(process: RunProcess, run: Run) -> Sequence[RunStep]:
    """Its steps, oldest first."""
    asked = PageRequest(size=100, newest_first=False)
    return (await process.runs.steps(PROJECT, run.thread_id, run.id, asked)).items


def names(events: Sequence[NumberedEvent]) -> list[str]:
    """What happened, in short; a delta by its kind alone."""
    return [
        f"{event.kind}.{what}" if (what := getattr(event, "what", "")) else event.kind
        for _, event in events
    ]
