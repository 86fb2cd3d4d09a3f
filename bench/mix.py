"""A mix of all request types for the soak test: over gRPC and HTTP, free and constrained,
completed, cancelled, rejected, and past their deadline."""

import asyncio
import json
import random
from collections.abc import AsyncIterable, Awaitable, Callable

import grpc.aio
from corral.inference.v1 import chat_pb2, generation_pb2
from corral.inference.v1.inference_service_pb2 import (
    ChatRequest,
    Conversation,
    EmbedRequest,
    GenerateRequest,
    GenerateResponse,
    TextOrTokens,
    TokenIds,
)
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub

from bench.loadgen import exchange, read_stream
from bench.streams import LoadError
from bench.workload import PLAIN_TOKENS, SAMPLINGS, WORDS

TIMEOUT_S = 600.0
LARGEST_OUTPUT_TOKENS = 32
SYSTEM_PROMPT = " ".join(WORDS * 4)
FORMS = (
    generation_pb2.Constraint(regex="[a-z]{4,12}( [a-z]{4,12}){0,3}"),
    generation_pb2.Constraint(
        json_schema=json.dumps(
            {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 12},
                    "age": {"type": "integer", "minimum": 0, "maximum": 120},
                },
                "required": ["name", "age"],
            }
        )
    ),
    generation_pb2.Constraint(choices=generation_pb2.TextChoices(values=["yes", "no", "perhaps"])),
)
Kind = Callable[[random.Random], Awaitable[None]]


class Mix:
    """Sends requests of all types to one server. The same number always gives the same request."""

    def __init__(
        self, channel: grpc.aio.Channel, url: str, model: str, context_tokens: int
    ) -> None:
        self._service = InferenceServiceStub(channel)
        self._url = url
        self._model = model
        self._context_tokens = context_tokens
        self._kinds: dict[Kind, int] = {  # weights
            self._generate: 20,
            self._chat: 15,
            self._chat_over_http: 15,
            self._constrain: 10,
            self._request_choices: 5,
            self._embed: 5,
            self._cancel: 12,
            self._disconnect_http: 10,
            self._exceed_deadline: 3,
            self._exceed_context: 5,
        }

    async def send(self, number: int) -> None:
        """Send one request and read its response. Raises LoadError for an unexpected result."""
        rng = random.Random(number)
        (kind,) = rng.choices([*self._kinds], weights=[*self._kinds.values()])
        try:
            await kind(rng)
        except grpc.aio.AioRpcError as error:
            problem = f"request {number}: {error.code().name}: {error.details()}"
            raise LoadError(problem) from error

    async def send_largest(self) -> None:
        """Send the largest inputs concurrently, so that every buffer reaches its full size."""
        rng = random.Random(-1)
        longest = self._context_tokens - LARGEST_OUTPUT_TOKENS

        async def generate() -> None:
            options = _options(rng, max_tokens=LARGEST_OUTPUT_TOKENS)
            await _read(self._call(rng, options, prompt_tokens=longest))

        ids = rng.choices(PLAIN_TOKENS, k=longest // 2)
        inputs = [TextOrTokens(token_ids=TokenIds(ids=ids))] * 16
        embedding = self._service.Embed(EmbedRequest(model=self._model, inputs=inputs))
        await asyncio.gather(embedding, *(generate() for _ in range(32)))

    # --- completed --------------------------------------------------------------------------------

    async def _generate(self, rng: random.Random) -> None:
        await _read(self._call(rng, _options(rng)))

    async def _constrain(self, rng: random.Random) -> None:
        options = _options(rng, max_tokens=64)
        options.constraint.CopyFrom(rng.choice(FORMS))
        options.stopping.ignore_eos = False
        await _read(self._call(rng, options))

    async def _request_choices(self, rng: random.Random) -> None:
        options = _options(rng)
        options.num_choices = rng.randint(2, 3)
        await _read(self._call(rng, options))

    async def _chat(self, rng: random.Random) -> None:
        messages = [
            _message(chat_pb2.ROLE_SYSTEM, SYSTEM_PROMPT),
            _message(chat_pb2.ROLE_USER, _text(rng)),
        ]
        request = ChatRequest(
            model=self._model,
            conversation=Conversation(messages=messages),
            options=_options(rng),
        )
        await _read(self._service.Chat(request, timeout=TIMEOUT_S))

    async def _chat_over_http(self, rng: random.Random) -> None:
        read_stream(*await self._post(rng))

    async def _embed(self, rng: random.Random) -> None:
        inputs = [TextOrTokens(text=_text(rng)) for _ in range(rng.randint(1, 4))]
        await self._service.Embed(EmbedRequest(model=self._model, inputs=inputs), timeout=TIMEOUT_S)

    # --- aborted ----------------------------------------------------------------------------------

    async def _cancel(self, rng: random.Random) -> None:
        call = self._call(rng, _options(rng, max_tokens=200))
        remaining = rng.randint(0, 5)  # events to read before the cancellation
        if remaining:
            async for _ in call:
                remaining -= 1
                if not remaining:
                    break
        call.cancel()

    async def _disconnect_http(self, rng: random.Random) -> None:
        await self._post(rng, max_reads=rng.randint(1, 3))

    async def _exceed_deadline(self, rng: random.Random) -> None:
        await _fails_with(
            self._call(rng, _options(rng), timeout_s=rng.uniform(0.001, 0.05)),
            grpc.StatusCode.DEADLINE_EXCEEDED,
        )

    async def _exceed_context(self, rng: random.Random) -> None:
        call = self._call(rng, _options(rng), prompt_tokens=self._context_tokens + 1)
        if not await _fails_with(call, grpc.StatusCode.INVALID_ARGUMENT):
            raise LoadError(
                "a prompt longer than the context was accepted; expected INVALID_ARGUMENT"
            )

    # --- calls ------------------------------------------------------------------------------------

    def _call(
        self,
        rng: random.Random,
        options: generation_pb2.GenerationOptions,
        *,
        prompt_tokens: int = 0,
        timeout_s: float = TIMEOUT_S,
    ) -> "grpc.aio.UnaryStreamCall[GenerateRequest, GenerateResponse]":
        ids = rng.choices(PLAIN_TOKENS, k=prompt_tokens or rng.randint(1, 200))
        request = GenerateRequest(model=self._model, token_ids=TokenIds(ids=ids), options=options)
        return self._service.Generate(request, timeout=timeout_s)

    async def _post(
        self, rng: random.Random, max_reads: int | None = None
    ) -> tuple[float, list[tuple[float, bytes]]]:
        body = {
            "model": self._model,
            "messages": [
                {"role": "system", "content": SYSTEM_PROMPT},
                {"role": "user", "content": _text(rng)},
            ],
            "max_tokens": rng.randint(1, 48),
            "stream": True,
            "stream_options": {"include_usage": True},
            "seed": rng.getrandbits(31),
        }
        sent = json.dumps(body).encode()
        return await exchange(self._url, "/v1/chat/completions", sent, max_reads)


async def _read(stream: AsyncIterable[object]) -> None:
    async for _ in stream:
        pass


async def _fails_with(stream: AsyncIterable[object], code: grpc.StatusCode) -> bool:
    """Return whether the call failed with this status. Raises any other gRPC error."""
    try:
        await _read(stream)
    except grpc.aio.AioRpcError as error:
        if error.code() is not code:
            raise
        return True
    return False


def _options(rng: random.Random, max_tokens: int = 48) -> generation_pb2.GenerationOptions:
    sampling = SAMPLINGS[rng.choice(["greedy", "sampled"])].to_proto(rng.getrandbits(31))
    if rng.random() < 0.3:
        sampling.repetition_penalty = 1.1
    return generation_pb2.GenerationOptions(
        sampling=sampling,
        stopping=generation_pb2.StoppingParams(
            max_tokens=rng.randint(1, max_tokens), ignore_eos=rng.random() < 0.5
        ),
    )


def _message(role: chat_pb2.Role, text: str) -> chat_pb2.ChatMessage:
    return chat_pb2.ChatMessage(role=role, parts=[chat_pb2.ContentPart(text=text)])


def _text(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 40)))
