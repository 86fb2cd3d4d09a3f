"""The RPCs of runs and their steps; `worker.py` executes runs."""

import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from corral.control.v1 import run_service_pb2 as pb
from corral.control.v1.run_event_pb2 import RunEvent
from corral.inference.v1.generation_pb2 import RateLimitStatus

from control_svc.assistants.messages import MessageAdder
from control_svc.assistants.model import NewThread, Thread
from control_svc.assistants.queries import AssistantQueries, ThreadQueries
from control_svc.base import ids
from control_svc.base.idempotency import IdempotencyRecord, find_or_record, record_request
from control_svc.base.pagination import PAGE_BYTES, Page
from control_svc.base.proto import changed_values, page_request
from control_svc.base.resource import MAX_PAGE, Methods
from control_svc.db.transaction import Transaction, read_transaction, write_transaction
from control_svc.event_log.model import BEFORE_FIRST, encode_events
from control_svc.event_log.queries import StreamQueries
from control_svc.event_log.reader import StreamReader
from control_svc.items.model import ITEM_PREFIXES, FunctionCallOutput, Item, ItemStatus, Text
from control_svc.items.queries import TimelineQueries
from control_svc.jobs.queries import JobQueries
from control_svc.limits.buckets import RateLimits
from control_svc.runs.events import (
    CREATED,
    decode_event,
    requires_action,
    run_changed,
    step_changed,
    thread_created,
)
from control_svc.runs.model import CANCELLED, NewRun, Run, RunState, ToolOutput
from control_svc.runs.proto import NEW_RUN, NEW_RUN_THREAD, RUN, STEP
from control_svc.runs.queries import RunQueries, RunStepQueries
from control_svc.runs.steps import StepState, ToolCalls
from control_svc.runs.transitions import end_run
from control_svc.runs.worker import KIND, run_job
from svc_kit.errors import RunActive, RunNotFound, StaleGeneration

CREATE: Final = "CreateRun"
CREATE_WITH_THREAD: Final = "CreateThreadAndRun"
SUBMIT: Final = "SubmitToolOutputs"
_SEED_BITS: Final = 31
_CANCEL_ATTEMPTS: Final = 8
"""An attempt fails only if the client submits outputs between two of its statements. The next one
fails only if the run has meanwhile completed a turn and waits again."""


@dataclass(frozen=True)
class Runs(Methods[Run]):
    service = pb.DESCRIPTOR.services_by_name["RunService"]
    message, noun, plural = RUN, "a run", "runs"

    reader: StreamReader
    limits: RateLimits
    adder: MessageAdder
    wait: timedelta
    """How long a run waits for outputs before it expires."""
    seed: Callable[[], int] = lambda: secrets.randbits(_SEED_BITS)

    # ---- creation

    async def CreateRun(self, project: str, request: pb.CreateRunRequest) -> pb.CreateRunResponse:
        """Create a run. Raises the errors of `create`."""
        new = NEW_RUN.from_message(request.run, request_id=request.request_id)
        run = await self.create(project, request.thread_id, new)
        return pb.CreateRunResponse(run=RUN.to_message(run), rate_limits=await self._limits(run))

    async def CreateThreadAndRun(
        self, project: str, request: pb.CreateThreadAndRunRequest
    ) -> pb.CreateThreadAndRunResponse:
        """Create a thread and a run on it. Raises the errors of creating each of them."""
        new = NEW_RUN.from_message(request.run, request_id=request.request_id)
        run = await self._create_with_thread(project, NEW_RUN_THREAD.from_message(request), new)
        limits = await self._limits(run)
        return pb.CreateThreadAndRunResponse(run=RUN.to_message(run), rate_limits=limits)

    async def create(self, project: str, thread_id: str, new: NewRun) -> Run:
        """Create a run on a thread.

        Raises ThreadNotFound, AssistantNotFound, FileNotFound, RunActive, RequestIdReused, and the
        errors of `NewRun.check`.
        """
        new.check()
        run_id = self.ids.new(ids.RUN)
        request = IdempotencyRecord.of(CREATE, new.request_id, run_id, self.clock(), thread_id, new)

        async def add(tx: Transaction) -> Run:
            thread = await ThreadQueries(tx).lock(thread_id)
            created = await record_request(tx, request)
            if created != run_id:
                return await RunQueries(tx).get_in_thread(thread_id, created)
            return await self._add(tx, thread, new, run_id, [])

        return await self.transactions.of(project).write(add)

    async def _create_with_thread(self, project: str, new_thread: NewThread, new: NewRun) -> Run:
        new_thread.check("thread.")
        new.check()
        now = self.clock()
        thread = Thread(id=self.ids.new(ids.THREAD), settings=new_thread.settings, created_at=now)
        run_id = self.ids.new(ids.RUN)
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
        await JobQueries(tx).add(run_job(self.ids.new(ids.JOB), run))
        return run

    # ---- reading

    @read_transaction
    async def GetRun(self, tx: Transaction, request: pb.GetRunRequest) -> Run:
        """Raises RunNotFound."""
        return await RunQueries(tx).get_in_thread(request.thread_id, request.run_id)

    @read_transaction
    async def ListRuns(self, tx: Transaction, request: pb.ListRunsRequest) -> Page[Run]:
        """A page of a thread's runs. Raises ThreadNotFound, OutOfRange or InvalidField."""
        window = self.window(tx, request, ids.RUN, request.thread_id)
        await ThreadQueries(tx).get(request.thread_id)
        runs = await RunQueries(tx).page_of_thread(request.thread_id, window)
        return window.page(runs, PAGE_BYTES)

    @read_transaction
    async def GetRunStep(
        self, tx: Transaction, request: pb.GetRunStepRequest
    ) -> pb.GetRunStepResponse:
        """Raises RunNotFound or RunStepNotFound."""
        run = await RunQueries(tx).get_in_thread(request.thread_id, request.run_id)
        step = await RunStepQueries(tx).get(run.id, request.step_id)
        return pb.GetRunStepResponse(step=STEP.to_message(step))

    @read_transaction
    async def ListRunSteps(
        self, tx: Transaction, request: pb.ListRunStepsRequest
    ) -> pb.ListRunStepsResponse:
        """A page of a run's steps. Raises RunNotFound, OutOfRange or InvalidField."""
        wanted = page_request(request)
        wanted.check_cursors(ids.STEP, "a step")
        window = self.tokens.window(wanted, (tx.project, "steps", request.run_id), MAX_PAGE)
        run = await RunQueries(tx).get_in_thread(request.thread_id, request.run_id)
        page = window.page(await RunStepQueries(tx).page(run.id, window), PAGE_BYTES)
        return pb.ListRunStepsResponse(
            steps=map(STEP.to_message, page.items), next_page_token=page.next_token
        )

    async def WatchRun(
        self, project: str, request: pb.WatchRunRequest
    ) -> AsyncGenerator[list[pb.WatchRunResponse], None]:
        """Yield the events after a number, until the run ends or waits for its client. Only the
        first list may be empty.

        Raises RunNotFound, StreamExpired or OutOfRange.
        """
        run_id = request.run_id
        after = request.after if request.HasField("after") else BEFORE_FIRST

        async def read(tx: Transaction) -> tuple[Run, int]:
            run = await RunQueries(tx).get_in_thread(request.thread_id, run_id)
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
                    batch.append(pb.WatchRunResponse(number=number, event=event))
                    is_current = number > newest or (is_waiting and number == newest)
                    if is_current and requires_action(event):
                        yield batch
                        return
                yield batch

    # ---- changes

    @write_transaction
    async def UpdateRun(self, tx: Transaction, request: pb.UpdateRunRequest) -> Run:
        """Replace the metadata, unless the mask is empty. Raises RunNotFound or InvalidField."""
        changed = changed_values(request, "thread_id", "run_id")
        await RunQueries(tx).get_in_thread(request.thread_id, request.run_id)
        run = await RunQueries(tx).lock(request.run_id)
        if changed:
            run = replace(run, metadata=dict(request.metadata))
            await RunQueries(tx).update(run)
        return run

    async def CancelRun(self, project: str, request: pb.CancelRunRequest) -> Run:
        """Request the cancellation of a run from its worker; end a run that waits for outputs.

        Raises RunNotFound, RunNotCancellable, or StaleGeneration if the run changed in every
        attempt.
        """
        for _ in range(_CANCEL_ATTEMPTS):
            run = await self._try_cancel(project, request.thread_id, request.run_id)
            if run is not None:
                return run
        raise StaleGeneration(resource=request.run_id)

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

    async def SubmitToolOutputs(
        self, project: str, request: pb.SubmitToolOutputsRequest
    ) -> pb.SubmitToolOutputsResponse:
        """Submit the outputs of a run's calls and resume it.

        Raises RunNotFound, ToolOutputsNotAccepted, ToolOutputsIncomplete or RequestIdReused.
        """
        run_id = request.run_id
        outputs = tuple(ToolOutput(each.call_id, each.output) for each in request.outputs)

        async def submit(tx: Transaction) -> tuple[Run, int]:
            await RunQueries(tx).get_in_thread(request.thread_id, run_id)
            run = await RunQueries(tx).lock(run_id)
            last_event = await _last_event(tx, run_id)
            # A repeated request returns the number of the event that preceded its outputs.
            record = IdempotencyRecord.of(
                SUBMIT, request.request_id, str(last_event), self.clock(), run_id, outputs
            )
            earlier = await find_or_record(tx, record)
            if earlier is not None:
                return run, int(earlier.resource_id)
            run = run.submit_outputs(outputs)
            await self._resume(tx, run, outputs)
            return run, last_event

        run, last_event = await self.transactions.of(project).write(submit)
        return pb.SubmitToolOutputsResponse(
            run=RUN.to_message(run), last_event=last_event, rate_limits=await self._limits(run)
        )

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
        await JobQueries(tx).add(run_job(self.ids.new(ids.JOB), run))

    async def _limits(self, run: Run) -> list[RateLimitStatus]:
        return await self.limits.of_caller(run.settings.model)


async def _last_event(tx: Transaction, run_id: str) -> int:
    """Number of the last event of a run; -1 if its stream is deleted."""
    stream = await StreamQueries(tx).get(run_id)
    return -1 if stream is None else stream.next_number - 1
