"""Log probabilities of text completions: parallel lists. Chats have those of
`dialects.shared.token_logprobs`.
"""

from collections.abc import Sequence

from corral.inference.v1 import generation_pb2
from typing_extensions import TypedDict

from dialects.shared.token_logprobs import clamp_logprob


class CompletionLogprobs(TypedDict):
    """The log probabilities of a completion. Each list has one entry per token; the first token of
    a prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


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


def token_name(token: bytes) -> str:
    """The token as text. Invalid UTF-8 gets OpenAI's `bytes:` notation, so that keys differ."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
