"""Log probabilities as objects, as in OpenAI's and Ollama's chats."""

from collections.abc import Iterable

from corral.inference.v1 import generation_pb2

MIN_LOGPROB = -9999.0
"""OpenAI's value for a probability of zero, since JSON has no infinity."""


def chat_logprobs(
    tokens: Iterable[generation_pb2.ChosenLogprob], *, ids: bool = False
) -> list[dict[str, object]]:
    """The entries of a chat choice's `logprobs.content`; `ids`: with ids, as llama-server's."""

    def entry(token: generation_pb2.TokenLogprob) -> dict[str, object]:
        return ({"id": token.token_id} if ids else {}) | {
            "token": token.token.decode(errors="replace"),
            "logprob": clamp_logprob(token.logprob),
            "bytes": list(token.token),
        }

    return [
        entry(token.chosen) | {"top_logprobs": [entry(other) for other in token.top]}
        for token in tokens
    ]


def clamp_logprob(logprob: float) -> float:
    """Replace values that JSON cannot represent, such as -inf and NaN, by MIN_LOGPROB."""
    return logprob if logprob >= MIN_LOGPROB else MIN_LOGPROB
