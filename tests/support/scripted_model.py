"""A model whose turns are written by a script, and computed by the real engine.

`ScriptedModel` is a proxy before an inference service. A chat goes on behind the turn of the script
as one that was interrupted there (`resume`), so the engine computes the whole prompt and the turn,
and keeps both as those of any other chat. All other calls are passed on as they are.
"""

import asyncio
import json
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc.aio
from corral.inference.v1 import chat_pb2
from corral.inference.v1 import generation_pb2 as generation
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub

from tests.support.services import Corral, Settings, corral_up
from tools.corral_server import free_address

_CHAT: Final = "/corral.inference.v1.InferenceService/Chat"
_OF_GRPC: Final = ("grpc-", "user-agent", "te", "content-type")
Context = grpc.aio.ServicerContext[Any, Any]
Metadata = list[tuple[str, str | bytes]]


@dataclass(frozen=True)
class Turn:
    """What the model writes: a text, and at most one call, as a name and its arguments."""

    text: str
    call: tuple[str, Mapping[str, object]] | None = None

    def as_written(self) -> str:
        """The turn in the format of the demo model."""
        if self.call is None:
            return self.text
        name, arguments = self.call
        call = json.dumps({"name": name, "arguments": arguments})
        return f"{self.text}\n<tool_call>\n{call}\n</tool_call>"

    def delta(self, number: int) -> pb.ChatDelta:
        """The parsed turn; `number` distinguishes the ids of calls."""
        delta = pb.ChatDelta(content=self.text)
        if self.call is not None:
            name, arguments = self.call
            call = {"id": f"call_{number}", "name": name, "arguments_json": json.dumps(arguments)}
            delta.tool_calls.add(**call)
        return delta


Script = Callable[[pb.Conversation], Turn]
"""Chooses the turn that follows a conversation."""


@dataclass(frozen=True, eq=False)
class Computed:
    """A chat as the engine computed it."""

    conversation: pb.Conversation
    prompt: "array[int]"
    turn: "array[int]"
    usage: generation.Usage

    @property
    def tokens(self) -> "array[int]":
        """All that a later chat can reuse."""
        return self.prompt + self.turn


@dataclass
class ScriptedModel(grpc.GenericRpcHandler):
    """The proxy; `address` is where it listens, and `chats` are what was computed, in the order in
    which they ended."""

    channel: grpc.aio.Channel
    script: Script
    target: str
    """Where the inference service listens."""
    address: str = ""
    chats: list[Computed] = field(default_factory=list)

    @asynccontextmanager
    async def run_corral(self, folder: Path, settings: Settings) -> AsyncIterator[Corral]:
        """Run `corral up` with this model and settings of its inference service. The event loop
        goes on while it starts and stops."""
        through_model = {"inference_target": self.address}
        starting = corral_up(
            *(folder, "--inference-listen", self.target),
            inference=settings,
            gateway=through_model,
            control=through_model,
        )
        corral = await asyncio.to_thread(starting.__enter__)
        try:
            yield corral
        finally:
            await asyncio.to_thread(starting.__exit__, None, None, None)

    def unchanged_tokens(self, chat: Computed) -> int:
        """The tokens from the start of its prompt that an earlier chat has computed too."""
        earlier = self.chats[: self.chats.index(chat)]
        return max((_num_common(chat.prompt, each.tokens) for each in earlier), default=0)

    def reused(self, chat: Computed) -> float:
        """The share that was reused of what an earlier chat has computed."""
        return chat.usage.cached_tokens / max(self.unchanged_tokens(chat), 1)

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """The handler of a method."""
        if details.method == _CHAT:
            return grpc.unary_stream_rpc_method_handler(
                self._chat, pb.ChatRequest.FromString, pb.ChatResponse.SerializeToString
            )

        async def pass_on(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
            method: Any = self.channel.stream_stream(details.method)
            async with _errors_passed_on(context):
                async for response in method(requests, metadata=_metadata(context)):
                    yield response

        return grpc.stream_stream_rpc_method_handler(pass_on)

    async def _chat(
        self, request: pb.ChatRequest, context: Context
    ) -> AsyncIterator[pb.ChatResponse]:
        turn = self.script(request.conversation)
        stub, metadata = InferenceServiceStub(self.channel), _metadata(context)
        async with _errors_passed_on(context):
            tokenize = pb.TokenizeRequest(text=turn.as_written(), parse_special=True)
            written = (await stub.Tokenize(tokenize, metadata=metadata)).token_ids
            answer = stub.Chat(_behind(request, written), metadata=metadata)
            prompt: Iterable[int] = ()
            async for response in answer:
                match response.WhichOneof("event"):
                    case "accepted":
                        prompt = [*response.accepted.prompt_token_ids]
                        response.accepted.ClearField("prompt_token_ids")
                    case "delta":  # a token that the model has added
                        continue
                    case "finished":
                        yield pb.ChatResponse(delta=turn.delta(len(self.chats)))
                        response.finished.reason = (
                            generation.FINISH_REASON_TOOL_CALLS
                            if turn.call
                            else generation.FINISH_REASON_STOP
                        )
                    case "done":
                        computed = array("i", prompt), array("i", written)
                        usage = response.done.usage
                        self.chats.append(Computed(request.conversation, *computed, usage))
                yield response


def _num_common(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    shorter = min(len(first), len(second))
    return next((place for place, (one, other) in pairs if one != other), shorter)


def _behind(request: pb.ChatRequest, written: Iterable[int]) -> pb.ChatRequest:
    """A chat that goes on, for one token, after those that are written."""
    resumed = generation.ResumedChoice(output_token_ids=written)
    options = generation.GenerationOptions(resume=[resumed], cache=request.options.cache)
    options.sampling.temperature, options.sampling.seed = 0, 1
    options.stopping.max_tokens = len(resumed.output_token_ids) + 1
    options.stopping.ignore_eos = True
    options.output.prompt_token_ids = True
    conversation = pb.Conversation()
    conversation.CopyFrom(request.conversation)
    if conversation.tool_choice.mode == chat_pb2.ToolChoice.MODE_REQUIRED:
        conversation.tool_choice.mode = chat_pb2.ToolChoice.MODE_AUTO
    return pb.ChatRequest(model=request.model, conversation=conversation, options=options)


def _metadata(context: Context) -> Metadata:
    return [
        (key, value)
        for key, value in context.invocation_metadata() or ()
        if not key.startswith(_OF_GRPC)
    ]


@asynccontextmanager
async def _errors_passed_on(context: Context) -> AsyncIterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        context.set_trailing_metadata(tuple(error.trailing_metadata() or ()))
        await context.abort(error.code(), error.details() or "")


@asynccontextmanager
async def run_scripted_model(script: Script) -> AsyncIterator[ScriptedModel]:
    """Run the proxy, before inference services that come and go."""
    unbounded, target = [("grpc.max_receive_message_length", -1)], free_address()
    async with grpc.aio.insecure_channel(target, options=unbounded) as channel:
        model = ScriptedModel(channel, script, target)
        server = grpc.aio.server(options=unbounded)
        server.add_generic_rpc_handlers([model])
        model.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            yield model
        finally:
            await server.stop(0)
