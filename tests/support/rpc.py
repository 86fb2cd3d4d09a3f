"""A plain gRPC client: builds requests, collects streams, parses errors.

It uses only the generated stubs and google.rpc, like a client in another language, and none of
Corral's client code.
"""

from collections import defaultdict
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import grpc
from corral.inference.v1 import chat_pb2, generation_pb2, sampling_pb2
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1.engine_service_pb2_grpc import EngineServiceStub
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

ChatStream: TypeAlias = "grpc.aio.UnaryStreamCall[pb.ChatRequest, pb.ChatResponse]"

CAPITAL = "What is the capital of France?"
PARIS = "The capital of France is Paris."


class Rpc:
    """The stubs of one server over one channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.inference = InferenceServiceStub(channel)
        self.engine = EngineServiceStub(channel)

    async def chat(self, request: pb.ChatRequest) -> "Answer":
        return await gather(self.inference.Chat(request))

    async def generate(self, request: pb.GenerateRequest) -> "Answer":
        """Send a prompt and collect the answer."""
        return await gather(self.inference.Generate(request))


@asynccontextmanager
async def connect(target: str, *options: tuple[str, int]) -> AsyncIterator[Rpc]:
    """Open a channel with gRPC's defaults and these options."""
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        yield Rpc(channel)


# --- requests -------------------------------------------------------------------------------------


def options(
    *,
    sampling: Mapping[str, Any] | None = None,
    stopping: Mapping[str, Any] | None = None,
    output: Mapping[str, Any] | None = None,
    **others: Any,
) -> generation_pb2.GenerationOptions:
    return generation_pb2.GenerationOptions(
        sampling=sampling_pb2.SamplingParams(**{"temperature": 0, **(sampling or {})}),
        stopping=generation_pb2.StoppingParams(**(stopping or {})),
        output=generation_pb2.OutputOptions(**(output or {})),
        **others,
    )


def user(text: str) -> chat_pb2.ChatMessage:
    return chat_pb2.ChatMessage(role=chat_pb2.ROLE_USER, parts=[chat_pb2.ContentPart(text=text)])


def make_chat(*messages: chat_pb2.ChatMessage, **settings: Any) -> pb.ChatRequest:
    """Return a chat request, by default about France; `settings` are those of `options`."""
    conversation = pb.Conversation(messages=messages or [user(CAPITAL)])
    return pb.ChatRequest(conversation=conversation, options=options(**settings))


def endless_chat(text: str = "Tell me a story.", **settings: Any) -> pb.ChatRequest:
    """Return a chat request that generates until it is cancelled."""
    stopping = {"ignore_eos": True, **settings.pop("stopping", {})}
    return make_chat(user(text), stopping=stopping, **settings)


def make_completion(text: str, **settings: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(text=text, parse_special=True, options=options(**settings))


# --- answers --------------------------------------------------------------------------------------


@dataclass
class Answer:
    """A collected stream; texts and other output by choice index."""

    accepted: generation_pb2.Accepted = field(default_factory=generation_pb2.Accepted)
    text: dict[int, str] = field(default_factory=lambda: defaultdict(str))
    reasoning: dict[int, str] = field(default_factory=lambda: defaultdict(str))
    tokens: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    logprobs: dict[int, list[generation_pb2.ChosenLogprob]] = field(
        default_factory=lambda: defaultdict(list)
    )
    finished: dict[int, generation_pb2.ChoiceFinished] = field(default_factory=dict)
    done: generation_pb2.Done = field(default_factory=generation_pb2.Done)
    kinds: list[str] = field(default_factory=list)

    def add(self, response: pb.ChatResponse | pb.GenerateResponse) -> None:
        if response.sequence_number != len(self.kinds):
            raise ValueError(f"event {response.sequence_number} came as number {len(self.kinds)}")
        kind = response.WhichOneof("event")
        self.kinds.append(kind or "")
        if kind == "delta":
            self._add_delta(response.delta)
        elif kind == "accepted":
            self.accepted = response.accepted
        elif kind == "finished":
            self.finished[response.finished.index] = response.finished
        elif kind == "done":
            self.done = response.done

    def _add_delta(self, delta: pb.ChatDelta | pb.TextDelta) -> None:
        if isinstance(delta, pb.ChatDelta):
            self.text[delta.index] += delta.content
            self.reasoning[delta.index] += delta.reasoning
        else:
            self.text[delta.index] += delta.text
        self.tokens[delta.index].extend(delta.token_ids)
        self.logprobs[delta.index].extend(delta.logprobs)


async def gather(
    stream: AsyncIterable[pb.ChatResponse] | AsyncIterable[pb.GenerateResponse],
) -> Answer:
    """Collect a stream. Raises grpc.aio.AioRpcError."""
    answer = Answer()
    async for response in stream:
        answer.add(response)
    return answer


async def accepted(stream: ChatStream) -> generation_pb2.Accepted:
    """Read the first event of a stream. The rest can still be read."""
    response: pb.ChatResponse = await anext(aiter(stream))
    return response.accepted


async def read_delta(stream: AsyncIterable[pb.ChatResponse]) -> str:
    """Read a stream up to its next output; return the request id if that was read too."""
    request_id = ""
    async for response in stream:
        request_id = response.accepted.request_id or request_id
        if response.HasField("delta"):
            return request_id
    raise ValueError("the stream ended without output")


# --- errors ---------------------------------------------------------------------------------------


class RichError(NamedTuple):
    """A failed call with its error details; `retry_after` is in seconds."""

    code: grpc.StatusCode
    reason: str
    domain: str
    metadata: dict[str, str]
    message: str
    request_id: str
    retry_after: float | None


def parse_error(failure: grpc.aio.AioRpcError) -> RichError:
    """Parse the details of a failure. Missing ones are empty."""
    trailers = dict(failure.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailers.get("grpc-status-details-bin", b""))
    info, request = error_details_pb2.ErrorInfo(), error_details_pb2.RequestInfo()
    retry, retry_after = error_details_pb2.RetryInfo(), None
    for detail in status.details:
        detail.Unpack(info)
        detail.Unpack(request)
        if detail.Unpack(retry):
            retry_after = retry.retry_delay.ToMilliseconds() / 1000
    return RichError(
        failure.code(),
        info.reason,
        info.domain,
        dict(info.metadata),
        failure.details() or "",
        request.request_id,
        retry_after,
    )


async def read_error(stream: AsyncIterable[object]) -> RichError:
    """Read a stream and return its error. Raises ValueError without one."""
    try:
        async for _ in stream:
            pass
    except grpc.aio.AioRpcError as failure:
        return parse_error(failure)
    raise ValueError("the stream did not fail")


async def call_error(call: Awaitable[object]) -> RichError:
    """Await a call and return its error. Raises ValueError without one."""
    try:
        await call
    except grpc.aio.AioRpcError as failure:
        return parse_error(failure)
    raise ValueError("the call did not fail")


async def expect_refusal(rpc: Rpc, request: pb.ChatRequest | pb.GenerateRequest) -> RichError:
    """Send a request and return its error. Raises ValueError if anything was computed for it."""
    before = await num_steps(rpc)
    call = rpc.chat(request) if isinstance(request, pb.ChatRequest) else rpc.generate(request)
    error = await call_error(call)
    if await num_steps(rpc) != before:
        raise ValueError("something was computed")
    return error


async def num_steps(rpc: Rpc) -> int:
    return (await rpc.engine.GetLoad(engine_pb.GetLoadRequest())).load.num_steps
