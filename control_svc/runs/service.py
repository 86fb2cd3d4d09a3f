"""CRUD and cancellation of runs; `worker.py` executes them."""

import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, NamedTuple

from corral.control.v1.run_event_pb2 import RunEvent
from corral.control.v1.run_service_pb2 import WatchRunResponse

from control_svc.assistants.messages import MessageAdder
from control_svc.assistants.model import NewThread, Thread
from control_svc.assistants.queries import AssistantQueries, ThreadQueries
from control_svc.base.idempotency import IdempotencyRecord, find_or_record, record_request
from control_svc.base.ids import JOB, RUN, STEP, THREAD, IdSource
from control_svc.base.pagination import PAGE_BYTES, Page, PageRequest, PageTokens
from control_svc.db.transaction import (
    Clock,
    Transaction,
    Transactions,
    read_transaction,
    write_transaction,
)
from control_svc.event_log.model import encode_events
from control_svc.event_log.queries import StreamQueries
from control_svc.event_log.reader import StreamReader
from control_svc.items.model import ITEM_PREFIXES, FunctionCallOutput, Item, ItemStatus, Text
from control_svc.items.queries import TimelineQueries
from control_svc.jobs.queries import JobQueries
from control_svc.runs.events import (
    CREATED,
    decode_event,
    requires_action,
    run_changed,
    step_changed,
    thread_created,
)
from control_svc.runs.model import CANCELLED, NewRun, Run, RunState, ToolOutput
from control_svc.runs.queries import RunQueries, RunStepQueries
from control_svc.runs.steps import RunStep, StepState, ToolCalls
from control_svc.runs.transitions import end_run
from control_svc.runs.worker import KIND, run_job
from svc_kit.errors import RunActive, RunNotFound, StaleGeneration

CREATE: Final = "CreateRun"
CREATE_WITH_THREAD: Final = "CreateThreadAndRun"
SUBMIT: Final = "SubmitToolOutputs"
MAX_PAGE: Final = 100
_SEED_BITS: Final = 31
_CANCEL_ATTEMPTS: Final = 8
"""An attempt fails only if the client submits outputs between two of its statements. The next one
fails only if the run has meanwhile completed a turn and waits again."""


class SubmitResult(NamedTuple):
    """A run that resumes with tool outputs."""

    run: Run
    last_event: int
    """Number of the last event before the outputs."""


@dataclass(frozen=True)
class Runs:
    transactions: Transactions
    reader: StreamReader
    ids: IdSource
    tokens: PageTokens
    clock: Clock
    adder: MessageAdder
    wait: timedelta
    """How long a run waits for outputs before it expires."""
    seed: Callable[[], int] = lambda: secrets.randbits(_SEED_BITS)

    # ---- creation

    async def create(self, project: str, thread_id: str, new: NewRun) -> Run:
        """Create a run on a thread.

        Raises ThreadNotFound, AssistantNotFound, FileNotFound, RunActive, RequestIdReused, and the
        errors of `NewRun.check`.
        """
        new.check()
        run_id = self.ids.new(RUN)
        request = IdempotencyRecord.of(CREATE, new.request_id, run_id, self.clock(), thread_id, new)

        async def add(tx: Transaction) -> Run:
            thread = await ThreadQueries(tx).lock(thread_id)
            created = await record_request(tx, request)
            if created != run_id:
                return await RunQueries(tx).get_in_thread(thread_id, created)
            return await self._add(tx, thread, new, run_id, [])

        return await self.transactions.of(project).write(add)

    async def create_with_thread(self, project: str, new_thread: NewThread, new: NewRun) -> Run:
        """Create a thread and a run on it. Raises the errors of creating each of them."""
        new_thread.check("thread.")
        new.check()
        now = self.clock()
        thread = Thread(id=self.ids.new(THREAD), settings=new_thread.settings, created_at=now)
        run_id = self.ids.new(RUN)
        request = IdempotencyRecord.of(
            CREATE_WITH_THREAD, new.request_id, run_id, now, new_thread, new
        )

        async def add(tx: Transaction) -> Run:
            created = await record_request(tx, request)
            if created != run_id:
                return await RunQueries(tx).lock(created)
            added = await self.adder.create_thread(tx, thread, new_thread, "thread.")
            return await self._add(tx, added, new, run_id, [thread_created(added)])

        return await self.transactions.of(project).write(add)

    async def _add(
        self,
        tx: Transaction,
        thread: Thread,
        request: NewRun,
        run_id: str,
        first_events: Sequence[RunEvent],
    ) -> Run:
        """Insert a run with its messages, job and first events. Raises RunActive."""
        assistant = await AssistantQueries(tx).get(request.assistant_id)
        if thread.active_run_id:
            raise RunActive(thread=thread.id, run=thread.active_run_id)
        thread = await self.adder.add(
            tx, thread, request.additional_messages, "additional_messages"
        )
        now = self.clock()
        run = Run(
            id=run_id,
            thread_id=thread.id,
            assistant_id=assistant.id,
            settings=request.settings(assistant.settings, thread.settings.resources, self.seed()),
            metadata=request.metadata,
            created_at=now,
            expires_at=now + self.wait,
        )
        await RunQueries(tx).add(run)
        await ThreadQueries(tx).update(replace(thread, active_run_id=run.id))
        events = encode_events([*first_events, run_changed(run, CREATED), run_changed(run)])
        await StreamQueries(tx).create(run.id, events)
        await JobQueries(tx).add(run_job(self.ids.new(JOB), run))
        return run

    # ---- reading

    @read_transaction
    async def get(self, tx: Transaction, thread_id: str, run_id: str) -> Run:
        """Raises RunNotFound."""
        return await RunQueries(tx).get_in_thread(thread_id, run_id)

    @read_transaction
    async def page(self, tx: Transaction, thread_id: str, page_request: PageRequest) -> Page[Run]:
        """A page of a thread's runs. Raises ThreadNotFound, OutOfRange or InvalidField."""
        page_request.check_cursors(RUN, "a run")
        window = self.tokens.window(page_request, (tx.project, "runs", thread_id), MAX_PAGE)
        await ThreadQueries(tx).get(thread_id)
        runs = await RunQueries(tx).page_of_thread(thread_id, window)
        return window.page(runs, PAGE_BYTES)

    @read_transaction
    async def step(self, tx: Transaction, thread_id: str, run_id: str, step_id: str) -> RunStep:
        """Raises RunNotFound or RunStepNotFound."""
        await RunQueries(tx).get_in_thread(thread_id, run_id)
        return await RunStepQueries(tx).get(run_id, step_id)

    @read_transaction
    async def steps(
        self, tx: Transaction, thread_id: str, run_id: str, page_request: PageRequest
    ) -> Page[RunStep]:
        """A page of a run's steps. Raises RunNotFound, OutOfRange or InvalidField."""
        page_request.check_cursors(STEP, "a step")
        window = self.tokens.window(page_request, (tx.project, "steps", run_id), MAX_PAGE)
        await RunQueries(tx).get_in_thread(thread_id, run_id)
        return window.page(await RunStepQueries(tx).page(run_id, window), PAGE_BYTES)

    async def watch(
        self, project: str, thread_id: str, run_id: str, after: int
    ) -> AsyncGenerator[Sequence[WatchRunResponse], None]:
        """Yield the events after a number, in batches, until the run ends or waits for its client.
        Only the first batch may be empty.

        Raises RunNotFound, StreamExpired or OutOfRange.
        """

        async def read(tx: Transaction) -> tuple[Run, int]:
            run = await RunQueries(tx).get_in_thread(thread_id, run_id)
            return run, await _last_event(tx, run_id)

        run, newest = await self.transactions.of(project).read(read)
        is_waiting = run.state is RunState.REQUIRES_ACTION
        following = self.reader.follow(
            project, run_id, after, missing=RunNotFound(run=run_id), field="after"
        )
        async with aclosing(following) as groups:
            if is_waiting and after == newest:
                return
            async for group in groups:
                batch = []
                for number, data in group:
                    event = decode_event(data)
                    batch.append(WatchRunResponse(number=number, event=event))
                    is_current = number > newest or (is_waiting and number == newest)
                    if is_current and requires_action(event):
                        yield batch
                        return
                yield batch

    # ---- changes

    @write_transaction
    async def update(
        self, tx: Transaction, thread_id: str, run_id: str, metadata: Mapping[str, str] | None
    ) -> Run:
        """Replace a run's metadata, unless None.

        Raises RunNotFound.
        """
        await RunQueries(tx).get_in_thread(thread_id, run_id)
        run = await RunQueries(tx).lock(run_id)
        if metadata is None:
            return run
        changed = replace(run, metadata=dict(metadata))
        await RunQueries(tx).update(changed)
        return changed

    async def cancel(self, project: str, thread_id: str, run_id: str) -> Run:
        """Request the cancellation of a run from its worker; end a run that waits for outputs.

        Raises RunNotFound, RunNotCancellable, or StaleGeneration if the run changed in every
        attempt.
        """
        for _ in range(_CANCEL_ATTEMPTS):
            run = await self._try_cancel(project, thread_id, run_id)
            if run is not None:
                return run
        raise StaleGeneration(resource=run_id)

    @write_transaction
    async def _try_cancel(self, tx: Transaction, thread_id: str, run_id: str) -> Run | None:
        """None if the run was resumed meanwhile, with a new job."""
        await RunQueries(tx).get_in_thread(thread_id, run_id)
        # Lock the row of the job first, as the worker of the run does.
        job = await JobQueries(tx).request_cancel(KIND, run_id)
        run = await RunQueries(tx).lock(run_id)
        cancelling = run.request_cancel()
        if job is not None:
            await RunQueries(tx).update(cancelling)
            return cancelling
        if run.state is not RunState.REQUIRES_ACTION:
            return None
        events = await end_run(tx, run, CANCELLED, {})
        await StreamQueries(tx).end(run_id, encode_events(events))
        return await RunQueries(tx).get_in_thread(thread_id, run_id)

    async def submit(
        self,
        project: str,
        thread_id: str,
        run_id: str,
        outputs: Sequence[ToolOutput],
        request_id: str,
    ) -> SubmitResult:
        """Submit the outputs of calls and resume the run.

        Raises RunNotFound, ToolOutputsNotAccepted, ToolOutputsIncomplete or RequestIdReused.
        """

        async def submit(tx: Transaction) -> SubmitResult:
            await RunQueries(tx).get_in_thread(thread_id, run_id)
            run = await RunQueries(tx).lock(run_id)
            last_event = await _last_event(tx, run_id)
            # A repeated request returns the number of the event that preceded its outputs.
            request = IdempotencyRecord.of(
                SUBMIT, request_id, str(last_event), self.clock(), run_id, tuple(outputs)
            )
            earlier = await find_or_record(tx, request)
            if earlier is not None:
                return SubmitResult(run, int(earlier.resource_id))
            run = run.submit_outputs(outputs)
            await self._resume(tx, run, outputs)
            return SubmitResult(run, last_event)

        return await self.transactions.of(project).write(submit)

    async def _resume(self, tx: Transaction, run: Run, outputs: Sequence[ToolOutput]) -> None:
        """Store the outputs and queue the run again."""
        now = await tx.now()
        events = []
        for step in await RunStepQueries(tx).in_progress(run.id):
            if isinstance(step.details, ToolCalls):
                ended = step.with_outputs(dict(outputs)).end(StepState.COMPLETED, now)
                await RunStepQueries(tx).update(ended)
                events.append(step_changed(ended))
        items = [
            Item(
                id=self.ids.new(ITEM_PREFIXES[FunctionCallOutput]),
                status=ItemStatus.COMPLETED,
                created_at=now,
                content=FunctionCallOutput(call_id=call_id, output=(Text(text=output),)),
            )
            for call_id, output in outputs
        ]
        await TimelineQueries(tx).append(run.thread_id, items, origin=run.id)
        await RunQueries(tx).update(run)
        events.append(run_changed(run))
        await StreamQueries(tx).append(run.id, encode_events(events))
        await JobQueries(tx).add(run_job(self.ids.new(JOB), run))


async def _last_event(tx: Transaction, run_id: str) -> int:
    """Number of the last event of a run; -1 if its stream is deleted."""
    stream = await StreamQueries(tx).get(run_id)
    return -1 if stream is None else stream.next_number - 1
