"""A fake inference service for tests: it answers each request with the events of its script."""

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


@dataclass
class Script:
    """What the fake does with a request. Pieces are the tokens of each answer."""

    pieces: Sequence[str] = ("Hello", " ", "world")
    reasoning: Sequence[str] = ()
    tool_calls: Sequence[chat_pb2.ToolCallDelta] = ()
    logprobs: Sequence[float] = (-0.5,)
    """The log probability of every token of choice 0, 1, ...; the last repeats."""
    refusal: DomainError | None = None
    """Raised instead of accepting."""
    failure: DomainError | None = None
    """Raised instead of the piece number `failure_at`."""
    failure_at: int = 1
    hold: asyncio.Event | None = None
    """Awaited before the piece number `hold_at`."""
    hold_at: int = 1
    hold_acceptance: asyncio.Event | None = None
    """Awaited before the request is accepted."""
    endless: bool = False
    """Repeats the pieces until the call is cancelled."""


@dataclass
class Seen:
    """What the fake has seen."""

    requests: list[Request] = field(default_factory=list)
    metadata: list[Mapping[str, str | bytes]] = field(default_factory=list)
    num_pieces: int = 0
    """Pieces handed to gRPC, over all requests."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with the first request."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the first request has ended, however it did."""
    num_running: int = 0
    peak_running: int = 0
    num_cancelled: int = 0


class FakeInference(inference_service_pb2_grpc.InferenceServiceServicer):
    """The service. Change `script` between requests, read `seen` after them."""

    def __init__(self, models: Sequence[str] = ("fake", "org/other:1b")) -> None:
        self.script = Script()
        self.seen = Seen()
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
        """Answers with the script."""
        async with aclosing(self._events(request, context)) as events:
            async for event in events:
                if isinstance(event, _Piece):
                    delta = event.of_chat(_wants_logprobs(request.options))
                    yield inference_service_pb2.ChatResponse(delta=delta)
                else:
                    yield inference_service_pb2.ChatResponse(**event)

    async def Generate(
        self, request: inference_service_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[inference_service_pb2.GenerateResponse]:
        """Answers with the script; a second prompt gets the same answer as the first."""
        async with aclosing(self._events(request, context)) as events:
            async for event in events:
                if isinstance(event, _Piece):
                    delta = event.of_text(_wants_logprobs(request.options))
                    yield inference_service_pb2.GenerateResponse(delta=delta)
                else:
                    yield inference_service_pb2.GenerateResponse(**event)

    async def Embed(
        self, request: inference_service_pb2.EmbedRequest, context: Context
    ) -> inference_service_pb2.EmbedResponse:
        """A text's vector has its length and 0.5; three tokens each."""
        async with aclosing(self._events(request, context)) as events:
            async for _ in events:
                pass
        sizes = [len(each.text or each.token_ids.ids) for each in request.inputs]
        return inference_service_pb2.EmbedResponse(
            embeddings=[inference_service_pb2.Embedding(values=(size, 0.5)) for size in sizes],
            prompt_tokens=3 * len(sizes),
            model=self._model(request.model).name,
        )

    async def Rerank(
        self, request: inference_service_pb2.RerankRequest, context: Context
    ) -> inference_service_pb2.RerankResponse:
        """A longer document is better."""
        async with aclosing(self._events(request, context)) as events:
            async for _ in events:
                pass
        results = [
            inference_service_pb2.RerankResult(index=index, score=len(text), relevance=0.5)
            for index, text in enumerate(request.documents)
        ]
        results.sort(key=lambda result: -result.score)
        return inference_service_pb2.RerankResponse(
            results=results[: request.top_n or None],
            prompt_tokens=3 * len(results),
            model=self._model(request.model).name,
        )

    async def Detokenize(
        self, request: inference_service_pb2.DetokenizeRequest, context: Context
    ) -> inference_service_pb2.DetokenizeResponse:
        """Token ids are characters."""
        text = "".join(chr(token) for token in request.token_ids)
        return inference_service_pb2.DetokenizeResponse(text=text)

    async def ListModels(
        self, request: inference_service_pb2.ListModelsRequest, context: Context
    ) -> inference_service_pb2.ListModelsResponse:
        """One model a page, so that callers must turn pages."""
        self._note(request, context)
        number = int(request.page_token or 0)
        more = number + 1 < len(self.models)
        return inference_service_pb2.ListModelsResponse(
            models=self.models[number : number + 1], next_page_token=str(number + 1) if more else ""
        )

    async def GetModel(
        self, request: inference_service_pb2.GetModelRequest, context: Context
    ) -> inference_service_pb2.GetModelResponse:
        """The model by its name."""
        return inference_service_pb2.GetModelResponse(model=self._model(request.model))

    def _model(self, name: str) -> model_pb2.Model:
        for model in self.models:
            if name in ("", model.name):
                return model
        raise ModelNotFound(model=name)

    def _note(self, request: Request, context: Context) -> None:
        self.seen.requests.append(request)
        self.seen.metadata.append(dict(context.invocation_metadata() or ()))
        self.seen.arrived.set()

    async def _events(
        self, request: Request, context: Context
    ) -> AsyncGenerator["_Piece | dict[str, Any]", None]:
        self._note(request, context)
        seen = self.seen
        seen.num_running += 1
        seen.peak_running = max(seen.peak_running, seen.num_running)
        try:
            async with aclosing(self._scripted(request, self.script)) as events:
                async for event in events:
                    yield event
        except (asyncio.CancelledError, GeneratorExit):
            seen.num_cancelled += 1
            raise
        finally:
            seen.num_running -= 1
            seen.ended.set()

    async def _scripted(
        self, request: Request, script: Script
    ) -> AsyncGenerator["_Piece | dict[str, Any]", None]:
        model = self._model(request.model)
        if script.refusal is not None:
            raise script.refusal
        if script.hold_acceptance is not None:
            await script.hold_acceptance.wait()
        yield {
            "accepted": generation_pb2.Accepted(request_id="r", prompt_tokens=3, model=model.name)
        }
        yield {"started": generation_pb2.Started()}
        num_choices, number = _num_choices(request), 0
        for piece in _pieces(script, num_choices):
            if script.failure is not None and number == script.failure_at:
                raise script.failure
            if script.hold is not None and number == script.hold_at:
                await script.hold.wait()
            self.seen.num_pieces += 1
            yield piece
            number += 1
        reason = TOOL_CALLS if script.tool_calls else STOP
        for index in range(num_choices):
            yield {"finished": generation_pb2.ChoiceFinished(index=index, reason=reason)}
        usage = generation_pb2.Usage(
            prompt_tokens=3, completion_tokens=number, reasoning_tokens=len(script.reasoning)
        )
        yield {"done": generation_pb2.Done(usage=usage)}


@dataclass(frozen=True, slots=True)
class _Piece:
    """One token of one choice."""

    index: int
    logprob: float
    text: str = ""
    reasoning: str = ""
    call: chat_pb2.ToolCallDelta | None = None

    def of_chat(self, with_logprob: bool) -> inference_service_pb2.ChatDelta:
        return inference_service_pb2.ChatDelta(
            index=self.index,
            content=self.text,
            reasoning=self.reasoning,
            tool_calls=[] if self.call is None else [self.call],
            logprobs=[self._chosen()] if with_logprob else [],
            num_tokens=1,
        )

    def of_text(self, with_logprob: bool) -> inference_service_pb2.TextDelta:
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
    """The pieces of all choices, one of each in turn."""
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
