"""Batches for tests: files of requests, a caller of BatchService, and an inference service that
fails in the ways that a batch must live through."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from corral.control.v1 import batch_pb2
from corral.control.v1 import batch_service_pb2 as pb
from corral.control.v1.batch_service_pb2_grpc import BatchServiceStub
from corral.inference.v1 import inference_service_pb2

from control_svc.batches.model import Batch
from control_svc.batches.output import BatchWriter
from control_svc.jobs.handler import JobContext
from gateway.fake_inference import Context, FakeInference
from svc_kit.errors import DomainError, EngineRestarting, InternalError
from svc_kit.rpc.client import translate_errors
from tests.support.control import BATCH, Client, RunningControl, a_control, a_service_token
from tests.support.loopback_gateway import an_inference_service

if TYPE_CHECKING:  # stubs over an aio channel have names for type checkers only
    from corral.control.v1.batch_service_pb2_grpc import BatchServiceAsyncStub

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
RESPONSES = "/v1/responses"
MODEL = "fake"


def a_chat_line(custom_id: str, content: str | None = None, **body: Any) -> dict[str, Any]:
    """A line that asks a model something; its custom_id unless said."""
    messages = [{"role": "user", "content": content or custom_id}]
    return a_line(custom_id, CHAT, messages=messages, **body)


def a_line(custom_id: str, url: str, **body: Any) -> dict[str, Any]:
    """A line of a batch."""
    fields = {"model": MODEL, **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": fields}


def jsonl(lines: Iterable[object]) -> bytes:
    """A file of lines."""
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@dataclass(frozen=True)
class Outcome:
    """A batch that has ended, with the lines of its files by custom_id; each stands there once."""

    batch: batch_pb2.Batch
    completed: dict[str, Any]
    failed: dict[str, Any]

    @property
    def state(self) -> str:
        """OpenAI's word."""
        return state_of(self.batch)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Total, completed, failed."""
        counts = self.batch.request_counts
        return counts.total, counts.completed, counts.failed


def state_of(batch: batch_pb2.Batch) -> str:
    """OpenAI's word for a batch's state."""
    return batch_pb2.Batch.State.Name(batch.state).removeprefix("STATE_").lower()


@dataclass(frozen=True)
class BatchClient:
    """BatchService as one project's caller sees it; failures are our errors."""

    client: Client

    @property
    def stub(self) -> "BatchServiceAsyncStub":
        """The service, bare."""
        return BatchServiceStub(self.client.channel)

    async def create(self, lines: Iterable[object], **asked: Any) -> batch_pb2.Batch:
        """A batch over a new file."""
        file = await self.client.create(jsonl(lines), filename="in.jsonl", purpose=BATCH)
        return await self.begin(file.id, **asked)

    async def begin(self, file_id: str, **asked: Any) -> batch_pb2.Batch:
        """A batch over a file."""
        request = pb.CreateBatchRequest(**{"input_file_id": file_id, "endpoint": CHAT, **asked})
        with translate_errors():
            return (await self.stub.CreateBatch(request, metadata=self.client.metadata)).batch

    async def get(self, batch_id: str) -> batch_pb2.Batch:
        """One batch."""
        request = pb.GetBatchRequest(batch_id=batch_id)
        with translate_errors():
            return (await self.stub.GetBatch(request, metadata=self.client.metadata)).batch

    async def page(self, **asked: Any) -> pb.ListBatchesResponse:
        """A page of batches."""
        request = pb.ListBatchesRequest(**asked)
        with translate_errors():
            return await self.stub.ListBatches(request, metadata=self.client.metadata)

    async def cancel(self, batch_id: str) -> batch_pb2.Batch:
        """Give a batch up."""
        request = pb.CancelBatchRequest(batch_id=batch_id)
        with translate_errors():
            return (await self.stub.CancelBatch(request, metadata=self.client.metadata)).batch

    async def watch(self, batch_id: str) -> AsyncIterator[batch_pb2.Batch]:
        """A batch as it changes, until it has ended."""
        request = pb.WatchBatchRequest(batch_id=batch_id)
        with translate_errors():
            async for answer in self.stub.WatchBatch(request, metadata=self.client.metadata):
                yield answer.batch

    async def until(self, batch_id: str, state: str, *, completed: int = 0) -> batch_pb2.Batch:
        """The batch once it is in a state with so many lines completed."""
        async for batch in self.watch(batch_id):
            if state_of(batch) == state and batch.request_counts.completed >= completed:
                return batch
        raise AssertionError(f"it never was {state}")

    async def outcome(self, batch_id: str) -> Outcome:
        """How a batch ended, when it has."""
        async for batch in self.watch(batch_id):
            last = batch
        return Outcome(
            last, await self._lines(last.output_file_id), await self._lines(last.error_file_id)
        )

    async def _lines(self, file_id: str) -> dict[str, Any]:
        if not file_id:
            return {}
        lines = [json.loads(text) for text in (await self.client.read(file_id)).splitlines()]
        found = {line["custom_id"]: line for line in lines}
        assert len(found) == len(lines), "a custom_id stands there twice"
        return found


def killer() -> EngineRestarting:
    """What is heard of an engine that died while it had the request."""
    return EngineRestarting(phase="running", retry_after=0.0)


@dataclass
class Plan:
    """What becomes of the chats about one thing."""

    errors: Sequence[DomainError] = ()
    """Raised by the first tries, one each."""
    always: DomainError | None = None
    """Raised by all others."""
    hold: asyncio.Event | None = None
    """Awaited before the answer."""


@dataclass
class Engine:
    """What dies with an engine: everything that it has."""

    deaths: int = 0
    running: set["asyncio.Future[None]"] = field(default_factory=set)

    def die(self) -> None:
        """Take along whatever runs."""
        self.deaths += 1
        for waiting in self.running:
            waiting.set_exception(killer())
        self.running.clear()


class LinesFake(FakeInference):
    """An inference service whose chats end as planned, by what they are about."""

    def __init__(self) -> None:
        super().__init__()
        self.plans: dict[str, Plan] = {}
        self.poison: set[str] = set()
        """What kills the engine, with everything that it has."""
        self.engine = Engine()
        self.tries: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.tried = asyncio.Condition()
        self.order: list[str] = []
        """What was asked, as it came."""

    async def until_tried(self, about: str, times: int) -> None:
        """Wait until something has been asked so often."""
        async with self.tried:
            await self.tried.wait_for(lambda: self.tries[about] >= times)

    def hold(self, about: str) -> asyncio.Event:
        """Let the chats about one thing wait until the event is set."""
        event = asyncio.Event()
        self.plans[about] = Plan(hold=event)
        return event

    async def Chat(
        self, request: inference_service_pb2.ChatRequest, context: Context
    ) -> AsyncIterator[inference_service_pb2.ChatResponse]:
        """Answers, or ends as planned."""
        about = request.conversation.messages[-1].parts[0].text
        plan = self.plans.get(about, Plan())
        number = self.tries[about]
        self.tries[about] += 1
        self.order.append(about)
        async with self.tried:
            self.tried.notify_all()
        if number < len(plan.errors):
            raise plan.errors[number]
        if plan.always is not None:
            raise plan.always
        await self._survive(about)
        if plan.hold is not None:
            await plan.hold.wait()
        async for event in super().Chat(request, context):
            yield event
        self.answered[about] += 1

    async def _survive(self, about: str) -> None:
        """Compute for a moment, in which the engine may die."""
        if not self.poison:
            return
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.engine.running.add(waiting)
        loop = asyncio.get_running_loop()
        if about in self.poison:
            loop.call_soon(self.engine.die)
        else:
            loop.call_soon(loop.call_soon, _done, waiting, self.engine)
        await waiting


def _done(waiting: "asyncio.Future[None]", engine: Engine) -> None:
    engine.running.discard(waiting)
    if not waiting.done():
        waiting.set_result(None)


@dataclass(frozen=True)
class RunningBatches:
    """A control service with a fake inference service behind it."""

    control: RunningControl
    fake: LinesFake

    @property
    def batches(self) -> BatchClient:
        """The caller without a key."""
        return BatchClient(self.control.client)

    def of_project(self, project: str) -> BatchClient:
        """A caller of another project."""
        return BatchClient(self.control.of_project(project))


@asynccontextmanager
async def an_inference_for(folder: Path, fake: LinesFake) -> AsyncIterator[str]:
    """The fake, behind the token of a control service in `folder`; its address."""
    async with an_inference_service(fake, service_token_file=a_service_token(folder)) as server:
        yield str(server.address)


@asynccontextmanager
async def running_batches(
    folder: Path, database_url: str | None = None, fake: LinesFake | None = None, **settings: Any
) -> AsyncIterator[RunningBatches]:
    """Both services; `settings` are those of control."""
    fake = fake or LinesFake()
    async with (
        an_inference_for(folder, fake) as target,
        a_control(folder, database_url, inference_target=target, **settings) as control,
    ):
        yield RunningBatches(control, fake)


def fail_to_write(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """So many jobs die because the files of their batch cannot be written."""
    write, errors = BatchWriter.write, iter([InternalError(request_id="r")] * times)

    async def deadly(self: BatchWriter, batch: Batch, context: JobContext) -> None:
        for error in errors:
            raise error
        await write(self, batch, context)

    monkeypatch.setattr(BatchWriter, "write", deadly)
