"""Log probabilities in OpenAI's two forms: objects for chat, parallel lists for completions."""

from collections.abc import Iterable, Sequence
from typing import TypedDict

from corral.inference.v1 import generation_pb2

MIN_LOGPROB = -9999.0
"""OpenAI's value for a probability of zero, since JSON has no infinity."""


class CompletionLogprobs(TypedDict):
    """The log probabilities of a completion. Each list has one entry per token; the first token of
    a prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


def chat_logprobs(tokens: Iterable[generation_pb2.ChosenLogprob]) -> list[dict[str, object]]:
    """The entries of a chat choice's `logprobs.content`."""
    return [
        _entry(token.chosen) | {"top_logprobs": [_entry(other) for other in token.top]}
        for token in tokens
    ]


def completion_logprobs(
    tokens: Sequence[generation_pb2.ChosenLogprob], offset: int
) -> CompletionLogprobs:
    """The `logprobs` of a completion choice. `offset` is the number of preceding characters."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += num_characters(token.chosen.token)
    return {
        "tokens": [token_name(token.chosen.token) for token in tokens],
        "token_logprobs": [clamp_logprob(token.chosen.logprob) for token in tokens],
        "top_logprobs": [
            {token_name(other.token): clamp_logprob(other.logprob) for other in token.top}
            for token in tokens
        ],
        "text_offset": offsets,
    }


def num_characters(token: bytes) -> int:
    """The number of characters that begin in a token. One split over tokens counts once."""
    return sum(byte & 0xC0 != 0x80 for byte in token)


def clamp_logprob(logprob: float) -> float:
    """Replace values that JSON cannot represent, such as -inf and NaN, by MIN_LOGPROB."""
    return logprob if logprob >= MIN_LOGPROB else MIN_LOGPROB


def _entry(token: generation_pb2.TokenLogprob) -> dict[str, object]:
    return {
        "token": token.token.decode(errors="replace"),
        "logprob": clamp_logprob(token.logprob),
        "bytes": list(token.token),
    }


def token_name(token: bytes) -> str:
    """The token as text. Invalid UTF-8 gets OpenAI's `bytes:` notation, so that keys differ."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
