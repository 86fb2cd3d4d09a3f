"""The tokens of a prompt with their log probabilities: vLLM's objects, and OpenAI's for `echo`."""

from collections.abc import Iterable, Sequence

from corral.inference.v1 import generation_pb2

from dialects.openai.chat.logprobs import CompletionLogprobs, num_characters, token_name
from dialects.shared.token_logprobs import clamp_logprob
from svc_kit.errors import TooLong

MAX_COLLECTED: int = 2**20
"""Log probabilities of the prompts of one object, with alternatives."""


class PromptTokens:
    """Collects the prompt tokens of one call."""

    def __init__(self, ids: Sequence[int] = ()) -> None:
        self.ids = ids
        """All tokens, if requested; negative numbers stand for pictures and sounds."""
        self.tokens: list[generation_pb2.PromptToken] = []
        """The tokens with their log probabilities, if requested."""

    def logprobs(self, num_top: int) -> list[dict[str, object] | None]:
        """vLLM's `prompt_logprobs`: for each token its own log probability and `num_top`
        alternatives, by token id; None where there is none."""
        return [_candidates(token, num_top) for token in self.tokens]

    def echo(self, text: str, num_top: int) -> CompletionLogprobs:
        """OpenAI's `logprobs` of a prompt that is returned as `text`."""
        tokens = self.tokens
        return {
            "tokens": [token_name(token.token) for token in tokens],
            "token_logprobs": [_logprob(token) for token in tokens],
            "top_logprobs": [
                {token_name(other.token): clamp_logprob(other.logprob) for other in top}
                if (top := _top(token, num_top)) is not None
                else None
                for token in tokens
            ],
            "text_offset": _offsets([token.token for token in tokens], text),
        }


def check_collected(prompts: Iterable[PromptTokens]) -> None:
    """Raise TooLong if one object would have too many log probabilities of prompts."""
    count = sum(1 + len(token.top) for prompt in prompts for token in prompt.tokens)
    if count > MAX_COLLECTED:
        raise TooLong(
            field="prompt_logprobs", length=count, limit=MAX_COLLECTED, unit="log probabilities"
        )


def joined_logprobs(prompt: CompletionLogprobs, answer: CompletionLogprobs) -> CompletionLogprobs:
    """The log probabilities of a prompt followed by those of its answer."""
    return {
        "tokens": prompt["tokens"] + answer["tokens"],
        "token_logprobs": prompt["token_logprobs"] + answer["token_logprobs"],
        "top_logprobs": prompt["top_logprobs"] + answer["top_logprobs"],
        "text_offset": prompt["text_offset"] + answer["text_offset"],
    }


def _logprob(token: generation_pb2.PromptToken) -> float | None:
    return clamp_logprob(token.logprob) if token.HasField("logprob") else None


def _top(
    token: generation_pb2.PromptToken, num_top: int
) -> Sequence[generation_pb2.TokenLogprob] | None:
    return token.top[:num_top] if token.HasField("logprob") else None


def _candidates(token: generation_pb2.PromptToken, num_top: int) -> dict[str, object] | None:
    if not token.HasField("logprob"):
        return None
    candidates: dict[str, object] = {
        str(token.token_id): _candidate(token.token, token.logprob, token.rank)
    }
    for rank, other in enumerate(token.top[:num_top], 1):
        candidates.setdefault(str(other.token_id), _candidate(other.token, other.logprob, rank))
    return candidates


def _candidate(token: bytes, logprob: float, rank: int) -> dict[str, object]:
    return {
        "logprob": clamp_logprob(logprob),
        "rank": rank,
        "decoded_token": token.decode(errors="replace"),
    }


def _offsets(tokens: Sequence[bytes], text: str) -> list[int]:
    """Where each token begins in the text. Tokens that the text lacks, such as the begin token and
    the space that some tokenizers put before a text, take no characters."""
    whole = b"".join(tokens).decode(errors="replace")
    start = len(whole) - len(text) if whole.endswith(text) else max(whole.find(text), 0)
    offsets, offset = [], -start
    for token in tokens:
        offsets.append(min(max(offset, 0), len(text)))
        offset += num_characters(token)
    return offsets
