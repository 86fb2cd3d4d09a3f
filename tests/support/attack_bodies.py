"""Requests of one caller that once cost others much more than their bytes.

Each attack is a route, a builder of its body, and how many of them are sent at once.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import orjson

_MESSAGE: Final = {"role": "user", "content": "x"}


class Attack(NamedTuple):
    """An attack: `num_clients` clients send `body` to `path`, each again when it is answered."""

    path: str
    body: Callable[[str], bytes]
    """The body for a model."""
    num_clients: int = 2


def _chat(**fields: Any) -> Callable[[str], bytes]:
    return lambda model: orjson.dumps(
        {"model": model, "max_tokens": 1, "messages": [_MESSAGE], **fields}
    )


def _fields(**fields: Any) -> Callable[[str], bytes]:
    return lambda model: orjson.dumps({"model": model, **fields})


def _many_members(model: str) -> bytes:
    members = dict.fromkeys(map(str, range(500_000)), 1)
    return orjson.dumps({"model": model, "messages": [_MESSAGE], **members})


def _messages(number: int) -> list[dict[str, str]]:
    return [_MESSAGE] * number


_TOOL: Final = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
_LONG_TEXT: Final = "The quick brown fox jumps over the lazy dog. " * 93_000

ATTACKS: Final[Mapping[str, Attack]] = {
    "chat: 1,000,000 messages": Attack("/v1/chat/completions", _chat(messages=_messages(10**6))),
    "responses: 1,000,000 items": Attack("/v1/responses", _fields(input=_messages(10**6))),
    "messages: 1,000,000 messages": Attack("/v1/messages", _chat(messages=_messages(10**6))),
    "Ollama: 1,000,000 messages": Attack("/api/chat", _chat(messages=_messages(10**6))),
    "chat: 40,000 messages": Attack("/v1/chat/completions", _chat(messages=_messages(40_000)), 4),
    "chat: 10,000 messages": Attack("/v1/chat/completions", _chat(messages=_messages(10_000)), 4),
    "chat: 500,000 unknown members": Attack("/v1/chat/completions", _many_members),
    "chat: 20,000 tools": Attack("/v1/chat/completions", _chat(tools=[_TOOL] * 20_000)),
    "chat: 300,000 stop texts": Attack("/v1/chat/completions", _chat(stop=["x"] * 300_000)),
    "chat: 300,000 biases": Attack(
        "/v1/chat/completions", _chat(logit_bias=dict.fromkeys(map(str, range(300_000)), 1))
    ),
    "completions: 1,000,000 tokens": Attack("/v1/completions", _fields(prompt=[5] * 10**6)),
    "completions: 1,000,000 wrong tokens": Attack(
        "/v1/completions", _fields(prompt=[5, *["x"] * 10**6])
    ),
    "embeddings: 1,000,000 texts": Attack("/v1/embeddings", _fields(input=["x"] * 10**6)),
    "tokenize: 4 MB": Attack("/tokenize", _fields(content=_LONG_TEXT), 4),
    "chat: 4 MB of text, too long": Attack(
        "/v1/chat/completions", _chat(messages=[{"role": "user", "content": _LONG_TEXT}]), 32
    ),
    "completions: 100 kB of text, too long": Attack(
        "/v1/completions", _fields(prompt=_LONG_TEXT[:100_000], max_tokens=1), 32
    ),
    "chat: 128 choices": Attack("/v1/chat/completions", _chat(n=128, max_tokens=16), 32),
}
