"""Log probabilities in OpenAI's two forms: objects for chat, parallel lists for completions."""

from collections.abc import Iterable, Sequence
from typing import TypedDict

from corral.inference.v1 import generation_pb2

LOWEST = -9999.0
"""What OpenAI writes where the probability is zero; JSON has no infinity."""


class CompletionLogprobs(TypedDict):
    """The log probabilities of a completion, one entry a token in each list."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
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
    """The lists of a completion choice. `offset` is how many characters precede the first."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += num_characters(token.chosen.token)
    return {
        "tokens": [_name(token.chosen.token) for token in tokens],
        "token_logprobs": [finite(token.chosen.logprob) for token in tokens],
        "top_logprobs": [
            {_name(other.token): finite(other.logprob) for other in token.top} for token in tokens
        ],
        "text_offset": offsets,
    }


def num_characters(token: bytes) -> int:
    """How many characters begin in a token's bytes; a character split over tokens counts once."""
    return sum(byte & 0xC0 != 0x80 for byte in token)


def finite(logprob: float) -> float:
    """A log probability that JSON can carry."""
    return logprob if logprob >= LOWEST else LOWEST


def _entry(token: generation_pb2.TokenLogprob) -> dict[str, object]:
    return {
        "token": token.token.decode(errors="replace"),
        "logprob": finite(token.logprob),
        "bytes": list(token.token),
    }


def _name(token: bytes) -> str:
    """The token as text; one that is no text gets OpenAI's notation, so that keys differ."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
