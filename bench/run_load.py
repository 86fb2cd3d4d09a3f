"""Times runs on threads over gRPC, and the same turns as bare chat completions.

A turn is a new question and an answer of a fixed length, so a run and a chat cost the engine the
same.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc.aio
from corral.control.v1 import (
    assistant_pb2,
    assistant_service_pb2,
    item_pb2,
    message_pb2,
    run_pb2,
    run_service_pb2,
    thread_service_pb2,
)
from corral.control.v1.assistant_service_pb2_grpc import AssistantServiceStub
from corral.control.v1.run_service_pb2_grpc import RunServiceStub
from corral.control.v1.thread_service_pb2_grpc import ThreadServiceStub
from corral.inference.v1 import engine_service_pb2
from corral.inference.v1.engine_service_pb2_grpc import EngineServiceStub
from corral.inference.v1.inference_service_pb2 import ChatRequest
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub

from bench.operators import step_seconds
from bench.servers import MODEL_NAME
from bench.streams import LoadError
from dialects.openai.chat.chat_request import chat_request, parse_chat

if TYPE_CHECKING:  # async stubs exist for type checkers only
    from corral.control.v1.assistant_service_pb2_grpc import AssistantServiceAsyncStub
    from corral.control.v1.run_service_pb2_grpc import RunServiceAsyncStub
    from corral.control.v1.thread_service_pb2_grpc import ThreadServiceAsyncStub
    from corral.inference.v1.engine_service_pb2_grpc import EngineServiceAsyncStub
    from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceAsyncStub

TIMEOUT_S = 600.0
_ANSWERED_STATES = (run_pb2.Run.STATE_COMPLETED, run_pb2.Run.STATE_INCOMPLETE)
"""An answer that ends at its token limit makes the run incomplete."""


@dataclass(frozen=True)
class RunTimes:
    """Seconds since the request of a run."""

    first_event_s: float
    total_s: float


class Turns:
    """Runs turns with one assistant, or directly with its model."""

    def __init__(
        self, control: grpc.aio.Channel, inference: grpc.aio.Channel, output_tokens: int
    ) -> None:
        self._assistants: AssistantServiceAsyncStub = AssistantServiceStub(control)
        self._threads: ThreadServiceAsyncStub = ThreadServiceStub(control)
        self._runs: RunServiceAsyncStub = RunServiceStub(control)
        self._engine: EngineServiceAsyncStub = EngineServiceStub(inference)
        self._inference: InferenceServiceAsyncStub = InferenceServiceStub(inference)
        self._output_tokens = output_tokens
        self._assistant_id = ""

    async def create_assistant(self) -> None:
        """Create the assistant of all runs."""
        assistant = assistant_pb2.Assistant(model=MODEL_NAME, options=self._request("").options)
        request = assistant_service_pb2.CreateAssistantRequest(assistant=assistant)
        self._assistant_id = (await self._assistants.CreateAssistant(request)).assistant.id

    async def create_thread(self, texts: Sequence[str]) -> str:
        """Create a thread of alternating messages, the last by the user, and return its id."""
        messages = [
            message_pb2.NewMessage(
                role=item_pb2.ITEM_ROLE_ASSISTANT if distance % 2 else item_pb2.ITEM_ROLE_USER,
                parts=[item_pb2.ItemPart(text=item_pb2.TextPart(text=text))],
            )
            for distance, text in zip(reversed(range(len(texts))), texts, strict=True)
        ]
        request = thread_service_pb2.CreateThreadRequest(messages=messages)
        return (await self._threads.CreateThread(request)).thread.id

    async def run(self, thread_id: str, last_messages: int | None = None) -> RunTimes:
        """Execute a run. Raises LoadError if it did not produce an answer."""
        options = run_service_pb2.RunOptions(assistant_id=self._assistant_id)
        if last_messages is not None:
            options.truncation.last_messages = last_messages
        request = run_service_pb2.CreateRunRequest(thread_id=thread_id, run=options)
        started = time.perf_counter()
        run = (await self._runs.CreateRun(request, timeout=TIMEOUT_S)).run
        watch = run_service_pb2.WatchRunRequest(thread_id=thread_id, run_id=run.id)
        first, last = 0.0, None
        async for event in self._runs.WatchRun(watch, timeout=TIMEOUT_S):
            first, last = first or time.perf_counter(), event
        ended = time.perf_counter()
        if last is None or last.event.run_changed.run.state not in _ANSWERED_STATES:
            raise LoadError(f"a run ended without an answer: {last}")
        return RunTimes(first - started, ended - started)

    async def chat(self, text: str) -> float:
        """Return the seconds of a bare chat."""
        request, started = self._request(text), time.perf_counter()
        async for _ in self._inference.Chat(request, timeout=TIMEOUT_S):
            pass
        return time.perf_counter() - started

    async def step_seconds(self) -> float:
        """Return the total seconds of all engine steps so far."""
        answer = await self._engine.GetLoad(engine_service_pb2.GetLoadRequest())
        return step_seconds(answer.load)

    def _request(self, text: str) -> ChatRequest:
        body: dict[str, Any] = {
            "model": MODEL_NAME,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": self._output_tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        return chat_request(parse_chat(body))


@asynccontextmanager
async def connect_turns(control: str, inference: str, output_tokens: int) -> AsyncIterator[Turns]:
    """Connect to both services and create the assistant. Raises LoadError for gRPC errors."""
    try:
        async with (
            grpc.aio.insecure_channel(control) as control_channel,
            grpc.aio.insecure_channel(inference) as inference_channel,
        ):
            turns = Turns(control_channel, inference_channel, output_tokens)
            await turns.create_assistant()
            yield turns
    except grpc.aio.AioRpcError as error:
        raise LoadError(f"{error.code().name}: {error.details()}") from error


async def time_concurrent_runs(turns: Turns, questions: Sequence[str]) -> float:
    """Return the seconds of one run per question, all of them concurrent."""
    threads = [await turns.create_thread([question]) for question in questions]
    started = time.perf_counter()
    await asyncio.gather(*(turns.run(thread) for thread in threads))
    return time.perf_counter() - started


async def time_concurrent_chats(turns: Turns, questions: Sequence[str], callers: int) -> float:
    """Return the seconds of the same turns as bare chats with `callers` concurrent callers."""
    queue = iter(questions)

    async def caller() -> None:
        for question in queue:
            await turns.chat(question)

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return time.perf_counter() - started
