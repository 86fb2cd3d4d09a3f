"""Log probabilities as objects, as in OpenAI's and Ollama's chats."""

from collections.abc import Iterable

from corral.inference.v1 import generation_pb2
from typing_extensions import TypedDict

MIN_LOGPROB = -9999.0
"""OpenAI's value for a probability of zero, since JSON has no infinity."""


class CandidateLogprob(TypedDict):
    """The log probability of a token."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(CandidateLogprob):
    """The log probability of a sampled token, and those of the most probable ones."""

    top_logprobs: list[CandidateLogprob]


def chat_logprobs(tokens: Iterable[generation_pb2.ChosenLogprob]) -> list[TokenLogprob]:
    """The entries of a chat choice's `logprobs.content`."""
    return [
        {
            **candidate_logprob(token.chosen),
            "top_logprobs": [candidate_logprob(other) for other in token.top],
        }
        for token in tokens
    ]


def candidate_logprob(token: generation_pb2.TokenLogprob) -> CandidateLogprob:
    """The log probability of a token."""
    return {
        "token": token.token.decode(errors="replace"),
        "logprob": clamp_logprob(token.logprob),
        "bytes": list(token.token),
    }


def clamp_logprob(logprob: float) -> float:
    """Replace values that JSON cannot represent, such as -inf and NaN, by MIN_LOGPROB."""
    return logprob if logprob >= MIN_LOGPROB else MIN_LOGPROB
