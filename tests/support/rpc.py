"""A bare gRPC client's view: requests in a line, streams gathered, errors taken apart.

Written on the generated stubs and google.rpc alone, as a client in another language would be; none
of Corral's own client code is used.
"""

from collections import defaultdict
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import grpc
from corral.inference.v1 import chat_pb2, generation_pb2, sampling_pb2
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1.engine_service_pb2_grpc import EngineServiceStub
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from corral.inference.v1.engine_service_pb2_grpc import EngineServiceAsyncStub
    from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceAsyncStub

ChatStream: TypeAlias = "grpc.aio.UnaryStreamCall[pb.ChatRequest, pb.ChatResponse]"

CAPITAL = "What is the capital of France?"
PARIS = "The capital of France is Paris."


@dataclass(frozen=True)
class Rpc:
    """Both services of one server over one channel."""

    channel: grpc.aio.Channel
    inference: "InferenceServiceAsyncStub"
    engine: "EngineServiceAsyncStub"

    async def chat(self, request: pb.ChatRequest) -> "Answer":
        """The whole answer to a conversation."""
        return await gather(self.inference.Chat(request))

    async def generate(self, request: pb.GenerateRequest) -> "Answer":
        """The whole continuation of a prompt."""
        return await gather(self.inference.Generate(request))


@asynccontextmanager
async def connect(target: str, *options: tuple[str, int]) -> AsyncIterator[Rpc]:
    """A plain channel with gRPC's own defaults, unless options are given."""
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        yield Rpc(channel, InferenceServiceStub(channel), EngineServiceStub(channel))


# --- requests -------------------------------------------------------------------------------------


def options(
    *,
    sampling: Mapping[str, Any] | None = None,
    stopping: Mapping[str, Any] | None = None,
    output: Mapping[str, Any] | None = None,
    **others: Any,
) -> generation_pb2.GenerationOptions:
    """Options of a greedy generation."""
    return generation_pb2.GenerationOptions(
        sampling=sampling_pb2.SamplingParams(**{"temperature": 0, **(sampling or {})}),
        stopping=generation_pb2.StoppingParams(**(stopping or {})),
        output=generation_pb2.OutputOptions(**(output or {})),
        **others,
    )


def user(text: str) -> chat_pb2.ChatMessage:
    """A turn of the user."""
    return chat_pb2.ChatMessage(role=chat_pb2.ROLE_USER, parts=[chat_pb2.ContentPart(text=text)])


def a_chat(*messages: chat_pb2.ChatMessage, **settings: Any) -> pb.ChatRequest:
    """A conversation, about France where no message is given; `settings` are those of `options`."""
    conversation = pb.Conversation(messages=messages or [user(CAPITAL)])
    return pb.ChatRequest(conversation=conversation, options=options(**settings))


def endless(text: str = "Tell me a story.", **settings: Any) -> pb.ChatRequest:
    """A chat that goes on until it is ended."""
    stopping = {"ignore_eos": True, **settings.pop("stopping", {})}
    return a_chat(user(text), stopping=stopping, **settings)


def a_text(text: str, **settings: Any) -> pb.GenerateRequest:
    """A raw prompt whose control tokens are read as such."""
    return pb.GenerateRequest(text=text, parse_special=True, options=options(**settings))


# --- answers --------------------------------------------------------------------------------------


@dataclass
class Answer:
    """A stream to its end; texts and the like are by choice."""

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
        """Take one event in."""
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
    """Read a stream to its end. Raises grpc.aio.AioRpcError."""
    answer = Answer()
    async for response in stream:
        answer.add(response)
    return answer


async def accepted(stream: ChatStream) -> generation_pb2.Accepted:
    """The first event of a stream. What follows can still be read."""
    response: pb.ChatResponse = await anext(aiter(stream))
    return response.accepted


async def first_delta(stream: AsyncIterable[pb.ChatResponse]) -> str:
    """Read a stream up to its next output; returns the request's id where it was read too."""
    request_id = ""
    async for response in stream:
        request_id = response.accepted.request_id or request_id
        if response.HasField("delta"):
            return request_id
    raise ValueError("the stream ended without output")


# --- errors ---------------------------------------------------------------------------------------


class RichError(NamedTuple):
    """A failed call with the details of its trailers; `retry_after` is in seconds."""

    code: grpc.StatusCode
    reason: str
    domain: str
    metadata: dict[str, str]
    message: str
    request_id: str
    retry_after: float | None


def rich(failure: grpc.aio.AioRpcError) -> RichError:
    """Take a failure apart. Empty texts stand for details that were not sent."""
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


async def failure_of(stream: AsyncIterable[object]) -> RichError:
    """The error that a stream ends with, whatever came before. Raises ValueError without one."""
    try:
        async for _ in stream:
            pass
    except grpc.aio.AioRpcError as failure:
        return rich(failure)
    raise ValueError("the stream ended well")


async def refused(rpc: Rpc, request: pb.ChatRequest | pb.GenerateRequest) -> RichError:
    """The error that a request ends with; nothing may have been computed for it."""
    before = await num_steps(rpc)
    asking = rpc.chat(request) if isinstance(request, pb.ChatRequest) else rpc.generate(request)
    try:
        await asking
    except grpc.aio.AioRpcError as failure:
        if await num_steps(rpc) != before:
            raise ValueError("something was computed") from None
        return rich(failure)
    raise ValueError("it was not refused")


async def num_steps(rpc: Rpc) -> int:
    """How many steps the engine has made."""
    return (await rpc.engine.GetLoad(engine_pb.GetLoadRequest())).load.num_steps
