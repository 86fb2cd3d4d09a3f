"""Batches for tests: input files, a client of BatchService, and a scripted inference service."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corral.control.v1 import batch_pb2
from corral.control.v1 import batch_service_pb2 as pb
from corral.control.v1.batch_service_pb2_grpc import BatchServiceStub
from corral.inference.v1 import inference_service_pb2

from svc_kit.errors import DomainError, EngineRestarting, InternalError
from svc_kit.rpc.client import translate_errors
from tests.support.control import BATCH, Client, RunningControl, run_control, write_service_token
from tests.support.fake_inference import Context, FakeInference
from tests.support.loopback_gateway import run_inference_service

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
RESPONSES = "/v1/responses"
MODEL = "fake"


def chat_line(custom_id: str, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": custom_id}]
    return batch_line(custom_id, CHAT, messages=messages, **body)


def batch_line(custom_id: str, url: str, **body: Any) -> dict[str, Any]:
    fields = {"model": MODEL, **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": fields}


def jsonl(lines: Iterable[object]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@dataclass(frozen=True)
class Outcome:
    """An ended batch with the lines of its output and error files, by custom_id."""

    batch: batch_pb2.Batch
    completed: dict[str, Any]
    failed: dict[str, Any]

    @property
    def state(self) -> str:
        """The state as in the OpenAI API."""
        return state_name(self.batch)

    @property
    def counts(self) -> tuple[int, int, int]:
        counts = self.batch.request_counts
        return counts.total, counts.completed, counts.failed


def state_name(message: Any) -> str:
    """The state of a batch, a vector store or its file as in the OpenAI API."""
    return str(type(message).State.Name(message.state)).removeprefix("STATE_").lower()


class BatchClient:
    """A client of BatchService for one project. Raises DomainErrors."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.stub = BatchServiceStub(client.channel)

    async def create(self, lines: Iterable[object], **fields: Any) -> batch_pb2.Batch:
        file = await self.client.create(jsonl(lines), filename="in.jsonl", purpose=BATCH)
        return await self.create_from_file(file.id, **fields)

    async def call(self, method: str, **fields: Any) -> Any:
        request = getattr(pb, f"{method}Request")(**fields)
        return await self.client.call(getattr(self.stub, method), request)

    async def create_from_file(self, file_id: str, **fields: Any) -> batch_pb2.Batch:
        fields = {"input_file_id": file_id, "endpoint": CHAT, **fields}
        response: pb.CreateBatchResponse = await self.call("CreateBatch", **fields)
        return response.batch

    async def get(self, batch_id: str) -> batch_pb2.Batch:
        response: pb.GetBatchResponse = await self.call("GetBatch", batch_id=batch_id)
        return response.batch

    async def page(self, **fields: Any) -> pb.ListBatchesResponse:
        response: pb.ListBatchesResponse = await self.call("ListBatches", **fields)
        return response

    async def cancel(self, batch_id: str) -> batch_pb2.Batch:
        response: pb.CancelBatchResponse = await self.call("CancelBatch", batch_id=batch_id)
        return response.batch

    async def run(self, lines: Iterable[object], **fields: Any) -> Outcome:
        return await self.wait_for_outcome((await self.create(lines, **fields)).id)

    async def watch(self, batch_id: str) -> AsyncIterator[batch_pb2.Batch]:
        """Yield the batch after each change, until it has ended."""
        request = pb.WatchBatchRequest(batch_id=batch_id)
        with translate_errors():
            async for response in self.stub.WatchBatch(request, metadata=self.client.metadata):
                yield response.batch

    async def wait_for_state(
        self, batch_id: str, state: str, *, completed: int = 0
    ) -> batch_pb2.Batch:
        """Wait until the batch is in a state with at least `completed` completed lines."""
        async for batch in self.watch(batch_id):
            if state_name(batch) == state and batch.request_counts.completed >= completed:
                return batch
        raise AssertionError(f"the batch was never {state}")

    async def wait_for_outcome(self, batch_id: str) -> Outcome:
        async for batch in self.watch(batch_id):
            last = batch
        return Outcome(
            last,
            await self._read_lines(last.output_file_id),
            await self._read_lines(last.error_file_id),
        )

    async def _read_lines(self, file_id: str) -> dict[str, Any]:
        if not file_id:
            return {}
        lines = [json.loads(text) for text in (await self.client.read(file_id)).splitlines()]
        lines_by_id = {line["custom_id"]: line for line in lines}
        assert len(lines_by_id) == len(lines), "duplicate custom_id"
        return lines_by_id


def engine_death() -> EngineRestarting:
    """The error of a request during which the engine died."""
    return EngineRestarting(phase="running", retry_after=0.0)


@dataclass
class Plan:
    """What happens to chats with a prompt."""

    errors: Sequence[DomainError] = ()
    """Raised by the first attempts, one each."""
    always: DomainError | None = None
    """Raised by all other attempts."""
    release: asyncio.Event | None = None
    """Awaited before the response."""


@dataclass
class Engine:
    """An engine whose crash fails all its requests."""

    deaths: int = 0
    running: set["asyncio.Future[None]"] = field(default_factory=set)

    def crash(self) -> None:
        """Fail all running requests."""
        self.deaths += 1
        for request in self.running:
            request.set_exception(engine_death())
        self.running.clear()


class ScriptedInference(FakeInference):
    """An inference service whose chats are scripted by their prompts."""

    def __init__(self) -> None:
        super().__init__()
        self.plans: dict[str, Plan] = {}
        self.poison: set[str] = set()
        """Prompts that crash the engine."""
        self.engine = Engine()
        self.attempts: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.attempted = asyncio.Condition()
        self.prompts: list[str] = []
        """Prompts in the order of their attempts."""

    async def wait_for_attempts(self, prompt: str, count: int) -> None:
        """Wait until a prompt has been attempted `count` times."""
        async with self.attempted:
            await self.attempted.wait_for(lambda: self.attempts[prompt] >= count)

    def block(self, prompt: str) -> asyncio.Event:
        """Block chats with a prompt until the returned event is set."""
        event = asyncio.Event()
        self.plans[prompt] = Plan(release=event)
        return event

    async def Chat(
        self, request: inference_service_pb2.ChatRequest, context: Context
    ) -> AsyncIterator[inference_service_pb2.ChatResponse]:
        """Respond or fail as scripted."""
        prompt = request.conversation.messages[-1].parts[0].text
        plan = self.plans.get(prompt, Plan())
        number = self.attempts[prompt]
        self.attempts[prompt] += 1
        self.prompts.append(prompt)
        async with self.attempted:
            self.attempted.notify_all()
        if number < len(plan.errors):
            raise plan.errors[number]
        if plan.always is not None:
            raise plan.always
        await self._run_in_engine(prompt)
        if plan.release is not None:
            await plan.release.wait()
        async for event in super().Chat(request, context):
            yield event
        self.answered[prompt] += 1

    async def _run_in_engine(self, prompt: str) -> None:
        if not self.poison:
            return
        loop = asyncio.get_running_loop()
        request: asyncio.Future[None] = loop.create_future()
        self.engine.running.add(request)
        if prompt in self.poison:
            loop.call_soon(self.engine.crash)
        else:
            loop.call_soon(loop.call_soon, _finish, request, self.engine)
        await request


def _finish(request: "asyncio.Future[None]", engine: Engine) -> None:
    engine.running.discard(request)
    if not request.done():
        request.set_result(None)


@dataclass(frozen=True)
class RunningBatches:
    """A control service with a scripted inference service."""

    control: RunningControl
    fake: ScriptedInference

    @property
    def batches(self) -> BatchClient:
        return BatchClient(self.control.client)

    def of_project(self, project: str) -> BatchClient:
        return BatchClient(self.control.of_project(project))

    async def create_failing(self, lines: Iterable[object], failed_writes: int) -> batch_pb2.Batch:
        """Create a batch; the first `failed_writes` jobs that write its files will die."""
        file = await self.control.client.create(jsonl(lines), filename="in.jsonl", purpose=BATCH)
        self.control.blobs.errors = [InternalError(request_id="r") for _ in range(failed_writes)]
        return await self.batches.create_from_file(file.id)


@asynccontextmanager
async def serve_inference(folder: Path, fake: ScriptedInference) -> AsyncIterator[str]:
    """Serve the fake with the service token of `folder`. Yields its address."""
    async with run_inference_service(
        fake, service_token_file=write_service_token(folder)
    ) as server:
        yield str(server.address)


@asynccontextmanager
async def run_batches(
    folder: Path,
    database_url: str | None = None,
    fake: ScriptedInference | None = None,
    **settings: Any,
) -> AsyncIterator[RunningBatches]:
    """Run both services. `settings` are passed to `run_control`."""
    fake = fake or ScriptedInference()
    async with (
        serve_inference(folder, fake) as target,
        run_control(folder, database_url, inference_target=target, **settings) as control,
    ):
        yield RunningBatches(control, fake)
