"""A fake inference service for tests, which answers every request according to a script."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
from corral.inference.v1 import (
    chat_pb2,
    generation_pb2,
    inference_service_pb2,
    inference_service_pb2_grpc,
    model_pb2,
)

from svc_kit.errors import DomainError, ModelNotFound

Request = Any
Context = grpc.aio.ServicerContext[Any, Any]

STOP = generation_pb2.FINISH_REASON_STOP
TOOL_CALLS = generation_pb2.FINISH_REASON_TOOL_CALLS
TOKEN = 7
"""The id of every token of an answer."""


@dataclass
class Script:
    """How the fake answers a request. `pieces` are the tokens of each choice."""

    pieces: Sequence[str] = ("Hello", " ", "world")
    reasoning: Sequence[str] = ()
    tool_calls: Sequence[chat_pb2.ToolCallDelta] = ()
    logprobs: Sequence[float] = (-0.5,)
    """The log probability of the tokens of choice 0, 1, and so on. The last value repeats."""
    refusal: DomainError | None = None
    """Raised before the request is accepted."""
    failure: DomainError | None = None
    """Raised instead of piece number `failure_at`."""
    failure_at: int = 1
    gate: asyncio.Event | None = None
    """Awaited before piece number `gate_at`."""
    gate_at: int = 1
    acceptance_gate: asyncio.Event | None = None
    """Awaited before the request is accepted."""
    count_gate: asyncio.Event | None = None
    """Awaited before tokens are counted."""
    start_gate: asyncio.Event | None = None
    """Awaited between acceptance and start."""
    times_s: tuple[float, float] | None = None
    """Time in the queue, and until the first token; None: not reported."""
    cached_tokens: int = 0
    """Prompt tokens, of 3, that are not computed."""
    max_tokens: int = 0
    """The limit in use that the service reports."""
    reason: generation_pb2.FinishReason | None = None
    """Why every choice ends. None: calls, or the end of the text."""
    ignored_options: Sequence[str] = ()
    """Options of reasoning without effect, that the service reports."""
    stop_text: str = ""
    """The stop text that ends every choice. Empty: none."""
    endless: bool = False
    """Repeat the pieces until the call is cancelled."""


@dataclass
class CallLog:
    requests: list[Request] = field(default_factory=list)
    metadata: list[Mapping[str, str | bytes]] = field(default_factory=list)
    num_pieces: int = 0
    """Pieces passed to gRPC, over all requests."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the first request arrives."""
    counting: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when tokens are to be counted, and the count is held."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the first request has ended, successfully or not."""
    num_running: int = 0
    peak_running: int = 0
    num_cancelled: int = 0


class FakeInference(inference_service_pb2_grpc.InferenceServiceServicer):
    """The servicer. Set `script` before requests and read `calls` after them."""

    def __init__(self, models: Sequence[str] = ("fake", "org/other:1b")) -> None:
        self.script = Script()
        self.calls = CallLog()
        self.models = [
            model_pb2.Model(
                name=name,
                state=model_pb2.Model.STATE_READY,
                vocabulary_size=256,
                resolved_limits=model_pb2.ModelLimits(context_tokens=4096),
            )
            for name in models
        ]

    async def Chat(
        self, request: inference_service_pb2.ChatRequest, context: Context
    ) -> AsyncIterator[inference_service_pb2.ChatResponse]:
        """Answer according to the script."""
        async with aclosing(self._events(request, context)) as events:
            async for event in events:
                if isinstance(event, _Piece):
                    delta = event.chat_delta(_wants_logprobs(request.options))
                    delta.token_ids.extend([TOKEN] if request.options.output.token_ids else [])
                    yield inference_service_pb2.ChatResponse(delta=delta)
                else:
                    yield inference_service_pb2.ChatResponse(**event)

    async def Generate(
        self, request: inference_service_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[inference_service_pb2.GenerateResponse]:
        """Answer according to the script, every prompt alike."""
        async with aclosing(self._events(request, context)) as events:
            async for event in events:
                if isinstance(event, _Piece):
                    delta = event.text_delta(_wants_logprobs(request.options))
                    delta.token_ids.extend([TOKEN] if request.options.output.token_ids else [])
                    yield inference_service_pb2.GenerateResponse(delta=delta)
                else:
                    yield inference_service_pb2.GenerateResponse(**event)

    async def Embed(
        self, request: inference_service_pb2.EmbedRequest, context: Context
    ) -> inference_service_pb2.EmbedResponse:
        """The vector of a text is its length and 0.5. Every text counts as three tokens."""
        await self._wait_for_end(request, context)
        sizes = [len(each.text or each.token_ids.ids) for each in request.inputs]
        return inference_service_pb2.EmbedResponse(
            embeddings=[inference_service_pb2.Embedding(values=(size, 0.5)) for size in sizes],
            prompt_tokens=3 * len(sizes),
            model=self._model(request.model).name,
        )

    async def Rerank(
        self, request: inference_service_pb2.RerankRequest, context: Context
    ) -> inference_service_pb2.RerankResponse:
        """The score of a document is its length. A limit of 9 requests applies."""
        await self._wait_for_end(request, context)
        results = [
            inference_service_pb2.RerankResult(index=index, score=len(text), relevance=0.5)
            for index, text in enumerate(request.documents)
        ]
        results.sort(key=lambda result: -result.score)
        return inference_service_pb2.RerankResponse(
            results=results[: request.top_n or None],
            prompt_tokens=3 * len(results),
            model=self._model(request.model).name,
            rate_limits=[
                generation_pb2.RateLimitStatus(
                    name="calls", unit="UNIT_REQUESTS", amount=9, remaining=8
                )
            ],
        )

    async def CountTokens(
        self, request: inference_service_pb2.CountTokensRequest, context: Context
    ) -> inference_service_pb2.CountTokensResponse:
        """Every part of a message counts as a token."""
        self._record(request, context)
        if self.script.count_gate is not None:
            self.calls.ended.clear()
            self.calls.counting.set()
            try:
                await self.script.count_gate.wait()
            except asyncio.CancelledError:
                self.calls.num_cancelled += 1
                self.calls.ended.set()
                raise
        num_parts = sum(len(message.parts) for message in request.conversation.messages)
        return inference_service_pb2.CountTokensResponse(prompt_tokens=num_parts)

    async def RenderChat(
        self, request: inference_service_pb2.RenderChatRequest, context: Context
    ) -> inference_service_pb2.RenderChatResponse:
        """The texts of the messages; the tokens are always 1 and 2."""
        await self._wait_for_end(request, context)
        parts = [part for each in request.conversation.messages for part in each.parts]
        text = "|".join(part.text for part in parts)
        return inference_service_pb2.RenderChatResponse(text=text, token_ids=[1, 2])

    async def Tokenize(
        self, request: inference_service_pb2.TokenizeRequest, context: Context
    ) -> inference_service_pb2.TokenizeResponse:
        """Token ids are the bytes of the text, after 1 if special tokens are added."""
        await self._wait_for_end(request, context)
        begin = [1] if request.add_special else []
        ids = [*begin, *request.text.encode()]
        pieces = [bytes([token]) for token in ids] if request.pieces else []
        return inference_service_pb2.TokenizeResponse(token_ids=ids, pieces=pieces)

    async def Detokenize(
        self, request: inference_service_pb2.DetokenizeRequest, context: Context
    ) -> inference_service_pb2.DetokenizeResponse:
        """Token ids are code points. It is recorded only if it is held."""
        if self.script.acceptance_gate is not None:
            await self._wait_for_end(request, context)
        text = "".join(chr(token) for token in request.token_ids)
        return inference_service_pb2.DetokenizeResponse(text=text)

    async def ListModels(
        self, request: inference_service_pb2.ListModelsRequest, context: Context
    ) -> inference_service_pb2.ListModelsResponse:
        """One model per page, to test paging."""
        self._record(request, context)
        number = int(request.page_token or 0)
        more = number + 1 < len(self.models)
        return inference_service_pb2.ListModelsResponse(
            models=self.models[number : number + 1], next_page_token=str(number + 1) if more else ""
        )

    async def GetModel(
        self, request: inference_service_pb2.GetModelRequest, context: Context
    ) -> inference_service_pb2.GetModelResponse:
        return inference_service_pb2.GetModelResponse(model=self._model(request.model))

    def _model(self, name: str) -> model_pb2.Model:
        for model in self.models:
            if name in ("", model.name):
                return model
        raise ModelNotFound(model=name)

    def _record(self, request: Request, context: Context) -> None:
        self.calls.requests.append(request)
        self.calls.metadata.append(dict(context.invocation_metadata() or ()))
        self.calls.arrived.set()

    async def _wait_for_end(self, request: Request, context: Context) -> None:
        async with aclosing(self._events(request, context)) as events:
            async for _ in events:
                pass

    async def _events(
        self, request: Request, context: Context
    ) -> AsyncGenerator["_Piece | dict[str, Any]", None]:
        self._record(request, context)
        calls = self.calls
        calls.num_running += 1
        calls.peak_running = max(calls.peak_running, calls.num_running)
        try:
            async with aclosing(self._scripted(request, self.script)) as events:
                async for event in events:
                    yield event
        except (asyncio.CancelledError, GeneratorExit):
            calls.num_cancelled += 1
            raise
        finally:
            calls.num_running -= 1
            calls.ended.set()

    async def _scripted(
        self, request: Request, script: Script
    ) -> AsyncGenerator["_Piece | dict[str, Any]", None]:
        model = self._model(request.model)
        if script.refusal is not None:
            raise script.refusal
        if script.acceptance_gate is not None:
            await script.acceptance_gate.wait()
        yield {
            "accepted": generation_pb2.Accepted(
                request_id="r",
                prompt_tokens=3,
                model=model.name,
                max_tokens=script.max_tokens,
                ignored_options=script.ignored_options,
            )
        }
        if script.start_gate is not None:
            await script.start_gate.wait()
        yield {"started": generation_pb2.Started(cached_tokens=script.cached_tokens)}
        num_choices, number = _num_choices(request), 0
        for piece in _pieces(script, num_choices):
            if script.failure is not None and number == script.failure_at:
                raise script.failure
            if script.gate is not None and number == script.gate_at:
                await script.gate.wait()
            self.calls.num_pieces += 1
            yield piece
            number += 1
        reason = script.reason or (TOOL_CALLS if script.tool_calls else STOP)
        for index in range(num_choices):
            finished = generation_pb2.ChoiceFinished(index=index, reason=reason)
            if script.stop_text:
                finished.stop_text = script.stop_text
            yield {"finished": finished}
        usage = generation_pb2.Usage(
            prompt_tokens=3,
            cached_tokens=script.cached_tokens,
            completion_tokens=number,
            reasoning_tokens=len(script.reasoning),
        )
        done = generation_pb2.Done(usage=usage)
        if script.times_s is not None:
            queue_s, first_token_s = script.times_s
            done.timings.queue.FromMilliseconds(round(queue_s * 1000))
            done.timings.first_token.FromMilliseconds(round(first_token_s * 1000))
        yield {"done": done}


@dataclass(frozen=True, slots=True)
class _Piece:
    """One token of one choice."""

    index: int
    logprob: float
    text: str = ""
    reasoning: str = ""
    call: chat_pb2.ToolCallDelta | None = None

    def chat_delta(self, with_logprob: bool) -> inference_service_pb2.ChatDelta:
        return inference_service_pb2.ChatDelta(
            index=self.index,
            content=self.text,
            reasoning=self.reasoning,
            tool_calls=[] if self.call is None else [self.call],
            logprobs=[self._chosen()] if with_logprob else [],
            num_tokens=1,
        )

    def text_delta(self, with_logprob: bool) -> inference_service_pb2.TextDelta:
        return inference_service_pb2.TextDelta(
            index=self.index,
            text=self.text,
            logprobs=[self._chosen()] if with_logprob else [],
            num_tokens=1,
        )

    def _chosen(self) -> generation_pb2.ChosenLogprob:
        token = generation_pb2.TokenLogprob(token=self.text.encode(), logprob=self.logprob)
        return generation_pb2.ChosenLogprob(chosen=token, top=[token])


def _pieces(script: Script, num_choices: int) -> Iterator[_Piece]:
    """The pieces of all choices, interleaved."""
    logprobs = [
        script.logprobs[min(index, len(script.logprobs) - 1)] for index in range(num_choices)
    ]
    choices = list(enumerate(logprobs))
    for text in script.reasoning:
        yield from (_Piece(index, logprob, reasoning=text) for index, logprob in choices)
    while True:
        for text in script.pieces:
            yield from (_Piece(index, logprob, text=text) for index, logprob in choices)
        if not script.endless:
            break
    for call in script.tool_calls:
        yield from (_Piece(index, logprob, call=call) for index, logprob in choices)


def _num_choices(request: Request) -> int:
    options = getattr(request, "options", None)
    return 1 if options is None else options.num_choices or 1


def _wants_logprobs(options: generation_pb2.GenerationOptions) -> bool:
    return options.output.HasField("top_logprobs")
