"""CRUD and cancellation of runs; `worker.py` executes them."""

import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import Final, NamedTuple

from control_svc.assistants.messages import MessageAdder
from control_svc.assistants.model import Assistant, NewThread, Thread
from control_svc.assistants.queries import AssistantQueries, ThreadQueries
from control_svc.base.idempotency import IdempotencyRecord, find_or_record, record_request
from control_svc.base.ids import JOB, RUN, STEP, THREAD, IdSource
from control_svc.base.pagination import PAGE_BYTES, Page, PageRequest, PageTokens
from control_svc.base.validation import check_metadata, check_request_id
from control_svc.db.transaction import Clock, Transaction, Transactions
from control_svc.event_log.queries import StreamQueries
from control_svc.event_log.reader import StreamReader
from control_svc.items.model import ITEM_PREFIXES, FunctionCallOutput, Item, ItemStatus, Text
from control_svc.items.queries import TimelineQueries
from control_svc.jobs.queries import JobQueries
from control_svc.runs.events import RunChanged, RunEvent, RunEventCodec, StepChanged, ThreadCreated
from control_svc.runs.model import NewRun, Run, RunState, ToolOutput, check_outputs
from control_svc.runs.queries import RunQueries, RunStepQueries
from control_svc.runs.steps import RunStep, StepState, ToolCalls, by_call
from control_svc.runs.transitions import CANCELLED, end_run
from control_svc.runs.worker import KIND, run_job
from svc_kit.errors import RunActive, RunNotFound, StaleGeneration

CREATE: Final = "CreateRun"
CREATE_WITH_THREAD: Final = "CreateThreadAndRun"
SUBMIT: Final = "SubmitToolOutputs"
MAX_PAGE: Final = 100
_SEED_BITS: Final = 31
_CANCEL_TRIES: Final = 8
"""Each fails only if the run's client answers between two statements of it, and then only once more
if the run has taken a turn and waits again."""


class Submitted(NamedTuple):
    """A run that resumes with tool outputs."""

    run: Run
    last_event: int
    """The number of the last event before the outputs."""


class NumberedEvent(NamedTuple):
    """An event of a run with its number."""

    number: int
    event: RunEvent


class _Situation(NamedTuple):
    """The state of a run when a client starts to watch it."""

    newest: int
    """The number of the last event."""
    is_waiting: bool

    def is_last(self, number: int) -> bool:
        """Whether watching ends with this event, because the run waits for its client now."""
        return number > self.newest or (self.is_waiting and number == self.newest)


class Runs:
    """What callers do with runs."""

    def __init__(
        self,
        transactions: Transactions,
        followers: StreamReader,
        codec: RunEventCodec,
        ids: IdSource,
        tokens: PageTokens,
        clock: Clock,
        *,
        wait: timedelta,
        seed: Callable[[], int] = lambda: secrets.randbits(_SEED_BITS),
        embedding_model: str | None = None,
    ) -> None:
        """`wait` is how long a run waits for outputs before it expires; `embedding_model` None:
        no file can be searched."""
        self._transactions = transactions
        self._followers = followers
        self._codec = codec
        self._ids = ids
        self._tokens = tokens
        self._clock = clock
        self._wait = wait
        self._seed = seed
        self._adder = MessageAdder(ids, clock, embedding_model)

    # ---- creation

    async def create(self, project: str, thread_id: str, new: NewRun) -> Run:
        """Begin a run on a thread.

        Raises what its check does, ThreadNotFound, AssistantNotFound, FileNotFound, RunActive and
        RequestIdReused.
        """
        new.check()
        run_id = self._ids.new(RUN)
        request = IdempotencyRecord.of(
            CREATE, new.request_id, run_id, self._clock(), thread_id, new
        )

        async def add(tx: Transaction) -> Run:
            thread = await ThreadQueries(tx).lock(project, thread_id)
            created = await record_request(tx, project, request)
            if created != run_id:
                return await RunQueries(tx).get(project, thread_id, created)
            return await self._begin(tx, project, thread, new, run_id, [])

        return await self._transactions.write(add)

    async def create_with_thread(self, project: str, first: NewThread, new: NewRun) -> Run:
        """Begin a thread and a run on it. Raises what creating each does."""
        first.check("thread.")
        new.check()
        now = self._clock()
        thread = Thread(id=self._ids.new(THREAD), settings=first.settings, created_at=now)
        run_id = self._ids.new(RUN)
        request = IdempotencyRecord.of(CREATE_WITH_THREAD, new.request_id, run_id, now, first, new)

        async def add(tx: Transaction) -> Run:
            created = await record_request(tx, project, request)
            if created != run_id:
                return await RunQueries(tx).lock(project, created)
            started = await self._adder.create_thread(tx, project, thread, first, "thread.")
            events = [ThreadCreated(thread=started)]
            return await self._begin(tx, project, started, new, run_id, events)

        return await self._transactions.write(add)

    async def _begin(
        self,
        tx: Transaction,
        project: str,
        thread: Thread,
        request: NewRun,
        run_id: str,
        told: Sequence[RunEvent],
    ) -> Run:
        """Keep a run, its messages, its job and its first events. Raises RunActive."""
        assistant = await AssistantQueries(tx).get(project, request.assistant_id)
        if thread.active_run_id:
            raise RunActive(thread=thread.id, run=thread.active_run_id)
        thread = await self._adder.add(
            tx, project, thread, request.additional_messages, "additional_messages"
        )
        run = self._made(request, assistant, thread, run_id)
        await RunQueries(tx).add(project, run)
        await ThreadQueries(tx).update(project, replace(thread, active_run_id=run.id))
        events = [*told, *(RunChanged(what=what, run=run) for what in ("created", "queued"))]
        await StreamQueries(tx).create(project, run.id, self._encoded(events))
        await JobQueries(tx).add(project, run_job(self._ids.new(JOB), run))
        return run

    def _made(self, request: NewRun, assistant: Assistant, thread: Thread, run_id: str) -> Run:
        now = self._clock()
        return Run(
            id=run_id,
            thread_id=thread.id,
            assistant_id=assistant.id,
            settings=request.settings(assistant.settings, thread.settings.resources, self._seed()),
            metadata=request.metadata,
            created_at=now,
            expires_at=now + self._wait,
        )

    # ---- reading

    async def get(self, project: str, thread_id: str, run_id: str) -> Run:
        """Raises RunNotFound."""
        return await self._transactions.read(
            lambda tx: RunQueries(tx).get(project, thread_id, run_id)
        )

    async def page(self, project: str, thread_id: str, page_request: PageRequest) -> Page[Run]:
        """A page of a thread's runs. Raises ThreadNotFound, OutOfRange or InvalidField."""
        page_request.check_cursors(RUN, "a run")
        binding = (project, "runs", thread_id)
        window = self._tokens.window(page_request, binding, MAX_PAGE)

        async def read(tx: Transaction) -> list[Run]:
            await ThreadQueries(tx).get(project, thread_id)
            return await RunQueries(tx).page(project, thread_id, window)

        found = await self._transactions.read(read)
        return self._tokens.page(found, window, page_request, binding, PAGE_BYTES)

    async def step(self, project: str, thread_id: str, run_id: str, step_id: str) -> RunStep:
        """A step. Raises RunNotFound or RunStepNotFound."""

        async def read(tx: Transaction) -> RunStep:
            await RunQueries(tx).get(project, thread_id, run_id)
            return await RunStepQueries(tx).get(project, run_id, step_id)

        return await self._transactions.read(read)

    async def steps(
        self, project: str, thread_id: str, run_id: str, page_request: PageRequest
    ) -> Page[RunStep]:
        """A page of a run's steps. Raises RunNotFound, OutOfRange or InvalidField."""
        page_request.check_cursors(STEP, "a step")
        binding = (project, "steps", run_id)
        window = self._tokens.window(page_request, binding, MAX_PAGE)

        async def read(tx: Transaction) -> list[RunStep]:
            await RunQueries(tx).get(project, thread_id, run_id)
            return await RunStepQueries(tx).page(project, run_id, window)

        found = await self._transactions.read(read)
        return self._tokens.page(found, window, page_request, binding, PAGE_BYTES)

    async def watch(
        self, project: str, thread_id: str, run_id: str, after: int
    ) -> AsyncGenerator[NumberedEvent, None]:
        """Yield events beyond a number until the run has ended or waits for its client. Raises
        RunNotFound, StreamExpired or OutOfRange.
        """
        started = await self._transactions.read(
            lambda each: self._situation(each, project, thread_id, run_id)
        )
        following = self._followers.follow(
            project, run_id, after, missing=RunNotFound(run=run_id), field="after"
        )
        async with aclosing(following) as groups:
            if started.is_waiting and after == started.newest:
                return
            async for group in groups:
                for number, data in group:
                    event = self._codec.decode(data)
                    yield NumberedEvent(number, event)
                    if _waits(event) and started.is_last(number):
                        return

    async def _situation(
        self, tx: Transaction, project: str, thread_id: str, run_id: str
    ) -> "_Situation":
        run = await RunQueries(tx).get(project, thread_id, run_id)
        stream = await StreamQueries(tx).get(project, run_id)
        newest = -1 if stream is None else stream.next_number - 1
        return _Situation(newest, run.state is RunState.REQUIRES_ACTION)

    # ---- changes

    async def update(
        self, project: str, thread_id: str, run_id: str, metadata: Mapping[str, str]
    ) -> Run:
        """Replace a run's metadata. Raises RunNotFound, and what `check_metadata` does."""
        check_metadata(metadata)

        async def change(tx: Transaction) -> Run:
            await RunQueries(tx).get(project, thread_id, run_id)
            found = await RunQueries(tx).lock(project, run_id)
            changed = replace(found, metadata=dict(metadata))
            await RunQueries(tx).update(project, changed)
            return changed

        return await self._transactions.write(change)

    async def cancel(self, project: str, thread_id: str, run_id: str) -> Run:
        """End a run: who works on it does, or this does.

        Raises RunNotFound, RunNotCancellable, or StaleGeneration where it has gone on, and waits
        again, as often as this looked.
        """

        async def give_up(tx: Transaction) -> Run | None:
            await RunQueries(tx).get(project, thread_id, run_id)
            # Lock the job's row first, as the run's worker does.
            job = await JobQueries(tx).request_cancel(project, KIND, run_id)
            run = await RunQueries(tx).lock(project, run_id)
            cancelling = run.cancelling()
            if job is not None:
                await RunQueries(tx).update(project, cancelling)
                return cancelling
            if run.state is not RunState.REQUIRES_ACTION:
                return None  # it has gone on, with a job that was not there
            events = await end_run(tx, project, run, CANCELLED, {})
            await StreamQueries(tx).end(project, run_id, self._encoded(events))
            return await RunQueries(tx).get(project, thread_id, run_id)

        for _ in range(_CANCEL_TRIES):
            given_up = await self._transactions.write(give_up)
            if given_up is not None:
                return given_up
        raise StaleGeneration(resource=run_id)

    async def submit(
        self,
        project: str,
        thread_id: str,
        run_id: str,
        outputs: Sequence[ToolOutput],
        request_id: str,
    ) -> Submitted:
        """Submit the outputs of calls; the run resumes. Raises RunNotFound, ToolOutputsNotAccepted,
        ToolOutputsIncomplete, TooLong and RequestIdReused.
        """
        check_request_id(request_id)
        check_outputs(outputs)

        async def add(tx: Transaction) -> Submitted:
            await RunQueries(tx).get(project, thread_id, run_id)
            run = await RunQueries(tx).lock(project, run_id)
            stream = await StreamQueries(tx).get(project, run_id)
            last_event = -1 if stream is None else stream.next_number - 1
            # What it made are events; their number is how a repeated request finds them.
            request = IdempotencyRecord.of(
                SUBMIT, request_id, str(last_event), self._clock(), run_id, tuple(outputs)
            )
            before = await find_or_record(tx, project, request)
            if before is not None:
                return Submitted(run, int(before.resource_id))
            run = run.answered(outputs)
            await self._take(tx, project, run, outputs)
            return Submitted(run, last_event)

        return await self._transactions.write(add)

    async def _take(
        self, tx: Transaction, project: str, run: Run, outputs: Sequence[ToolOutput]
    ) -> None:
        """Store the outputs and queue the run again."""
        now = await tx.now()
        events: list[RunEvent] = []
        for step in await RunStepQueries(tx).open(project, run.id):
            if isinstance(step.details, ToolCalls):
                done = step.with_outputs(by_call(outputs)).ended(StepState.COMPLETED, now)
                await RunStepQueries(tx).update(project, done)
                events.append(StepChanged(what=done.state.value, step=done))
        items = [
            Item(
                id=self._ids.new(ITEM_PREFIXES[FunctionCallOutput]),
                status=ItemStatus.COMPLETED,
                created_at=now,
                content=FunctionCallOutput(call_id=call_id, output=(Text(text=output),)),
            )
            for call_id, output in outputs
        ]
        await TimelineQueries(tx).append(project, run.thread_id, items, origin=run.id)
        await RunQueries(tx).update(project, run)
        events.append(RunChanged(what=run.state.value, run=run))
        await StreamQueries(tx).append(project, run.id, self._encoded(events))
        await JobQueries(tx).add(project, run_job(self._ids.new(JOB), run))

    # ---- parts

    def _encoded(self, events: Sequence[RunEvent]) -> list[bytes]:
        return [self._codec.encode(event) for event in events]


def _waits(event: RunEvent) -> bool:
    return isinstance(event, RunChanged) and event.run.state is RunState.REQUIRES_ACTION
