"""Attacks by the content of requests: large structures, long texts, many choices."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import grpc
import orjson
from corral.inference.v1 import chat_pb2, inference_service_pb2

from bench.attacks.attack import Attack, Target, connect, post_forever, read_head
from bench.attacks.transport import SOCKET, TEXT_FRAME, frame, read_frame
from bench.servers import MODEL_NAME

CHAT: Final = "/v1/chat/completions"
MESSAGE: Final = {"role": "user", "content": "x"}
TOOL: Final = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
LONG_TEXT: Final = "The quick brown fox jumps over the lazy dog. " * 93_000
"""4 MB."""
LONG_MESSAGE: Final = MESSAGE | {"content": LONG_TEXT}
Fields = Callable[[], dict[str, Any]]
"""Makes the members of a body; called when the attack begins, as they are large."""


async def post(path: str, fields: Fields, target: Target) -> None:
    """Send a body with these members and the model again and again."""
    await post_forever(target, path, orjson.dumps({"model": MODEL_NAME, **fields()}))


async def send_frames(number: int, target: Target) -> None:
    """Send a response of so many items in a frame of a WebSocket again and again."""
    items = {"type": "response.create", "model": MODEL_NAME, "input": [MESSAGE] * number}
    text = frame(TEXT_FRAME, orjson.dumps(items))
    async with connect(target.http) as (reader, writer):
        writer.write(SOCKET(target))
        await read_head(reader)
        while True:
            writer.write(text)
            await writer.drain()
            await read_frame(reader)


async def call_with_messages(number: int, target: Target) -> None:
    """Send a gRPC chat of so many messages again and again."""
    message = chat_pb2.ChatMessage(role=chat_pb2.ROLE_USER)
    message.parts.add().text = "x"
    request = inference_service_pb2.ChatRequest()
    request.conversation.messages.append(message)
    one = request.SerializeToString()
    body = one * number  # repeated messages of a serialized field are merged
    async with grpc.aio.insecure_channel(target.grpc) as channel:
        chat: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(
            "/corral.inference.v1.InferenceService/Chat"
        )
        while True:
            try:
                async for _ in chat(body):
                    pass
            except grpc.aio.AioRpcError:
                pass  # it is refused


def _chat(**fields: Any) -> Fields:
    return lambda: {"messages": [MESSAGE], "max_tokens": 1, **fields}


def _messages(number: int) -> Fields:
    return lambda: {"messages": [MESSAGE] * number, "max_tokens": 1}


def _numbers(number: int) -> dict[str, int]:
    return dict.fromkeys(map(str, range(number)), 1)


def _rows() -> Iterator[tuple[str, str, Fields, int]]:
    """Name, route, members, and how many send them at once."""
    yield "chat: 1,000,000 messages", CHAT, _messages(10**6), 2
    yield "responses: 1,000,000 items", "/v1/responses", lambda: {"input": [MESSAGE] * 10**6}, 2
    yield "Anthropic: 1,000,000 messages", "/v1/messages", _messages(10**6), 2
    yield "Ollama: 1,000,000 messages", "/api/chat", _messages(10**6), 2
    yield "chat: 40,000 messages", CHAT, _messages(40_000), 4
    yield "chat: 10,000 messages", CHAT, _messages(10_000), 4
    yield "chat: 500,000 members", CHAT, lambda: _chat()() | _numbers(500_000), 2
    yield "chat: 20,000 tools", CHAT, _chat(tools=[TOOL] * 20_000), 2
    yield "chat: 300,000 stop texts", CHAT, _chat(stop=["x"] * 300_000), 2
    yield "chat: 300,000 biases", CHAT, lambda: _chat(logit_bias=_numbers(300_000))(), 2
    yield "completions: 1,000,000 tokens", "/v1/completions", lambda: {"prompt": [5] * 10**6}, 2
    yield "embeddings: 1,000,000 texts", "/v1/embeddings", lambda: {"input": ["x"] * 10**6}, 2
    yield "tokenize: 4 MB", "/tokenize", lambda: {"content": LONG_TEXT}, 4
    yield "tokenize as a prompt: 4 MB", "/tokenize", _prompt(LONG_TEXT), 4
    yield "detokenize: 1,000,000 tokens", "/detokenize", lambda: {"tokens": [5] * 10**6}, 4
    yield "count tokens: 4 MB", "/v1/messages/count_tokens", _chat(messages=[LONG_MESSAGE]), 4
    yield "apply a template: 4 MB", "/apply-template", _chat(messages=[LONG_MESSAGE]), 4
    yield "Ollama: a prompt of 4 MB", "/api/generate", lambda: {"prompt": LONG_TEXT}, 4
    yield "chat: 4 MB, too long", CHAT, _chat(messages=[LONG_MESSAGE]), 32
    yield "completions: 100 KB, too long", "/v1/completions", _prompt(LONG_TEXT[:100_000]), 32
    yield "chat: 128 choices", CHAT, _chat(n=128, max_tokens=16), 32
    yield "chats that fill the queue", CHAT, _chat(max_tokens=64), 300
    yield "streamed chats that fill the queue", CHAT, _chat(max_tokens=64, stream=True), 300


def _prompt(text: str) -> Fields:
    return lambda: {"prompt": text, "max_tokens": 1}


ATTACKS: Final = (
    *(
        Attack(f"{name}, {number} at once", partial(post, path, fields), number)
        for name, path, fields, number in _rows()
    ),
    Attack("WebSocket: 20,000 items, 4 at once", partial(send_frames, 20_000), 4),
    *(
        Attack(f"WebSocket: 900,000 items, {number} at once", partial(send_frames, 900_000), number)
        for number in (1, 2)
    ),
    Attack("gRPC chat: 1,000,000 messages, 2 at once", partial(call_with_messages, 10**6), 2),
)
