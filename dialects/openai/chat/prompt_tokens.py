"""The tokens of a prompt with their log probabilities: vLLM's objects, and OpenAI's for `echo`."""

from collections.abc import Sequence

from corral.inference.v1 import generation_pb2

from dialects.openai.chat.logprobs import CompletionLogprobs, num_characters, token_name
from dialects.openai.chat.shapes import PromptLogprob, PromptLogprobs
from dialects.shared.token_logprobs import clamp_logprob
from svc_kit.errors import TooLong

MAX_COLLECTED: int = 2**20
"""Log probabilities of the prompts of one object, with alternatives."""


class PromptTokens:
    """Collects the prompt tokens of one call. They are converted as they arrive, since all of a
    long prompt together take too long for other requests of the process."""

    def __init__(self, num_top: int | None, num_echoed: int | None = None) -> None:
        """`num_top` is the number of alternatives for vLLM's form, `num_echoed` that for OpenAI's;
        None: the form is not wanted."""
        self.ids: Sequence[int] = ()
        """All tokens, if requested; negative numbers stand for pictures and sounds."""
        self.logprobs: PromptLogprobs = []
        self._num_top, self._num_echoed = num_top, num_echoed
        self._tokens: list[bytes] = []
        self._token_logprobs: list[float | None] = []
        self._top_logprobs: list[dict[str, float] | None] = []

    def add(self, tokens: Sequence[generation_pb2.PromptToken]) -> int:
        """Add the next tokens; return the number of their log probabilities with alternatives."""
        for token in tokens:
            if self._num_top is not None:
                self.logprobs.append(_candidates(token, self._num_top))
            if self._num_echoed is not None:
                self._add_echoed(token, self._num_echoed)
        return sum(1 + len(token.top) for token in tokens)

    def _add_echoed(self, token: generation_pb2.PromptToken, num_top: int) -> None:
        logprob, top = None, None
        if token.HasField("logprob"):
            logprob = clamp_logprob(token.logprob)
            others = token.top[:num_top]
            top = {token_name(other.token): clamp_logprob(other.logprob) for other in others}
        self._tokens.append(token.token)
        self._token_logprobs.append(logprob)
        self._top_logprobs.append(top)

    def echo(self, text: str) -> CompletionLogprobs:
        """OpenAI's `logprobs` of a prompt that is returned as `text`."""
        return {
            "tokens": [token_name(token) for token in self._tokens],
            "token_logprobs": self._token_logprobs,
            "top_logprobs": self._top_logprobs,
            "text_offset": _offsets(self._tokens, text),
        }


def check_collected(count: int) -> None:
    """Raise TooLong if these are too many log probabilities of prompts for one object."""
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


def _candidates(token: generation_pb2.PromptToken, num_top: int) -> dict[str, PromptLogprob] | None:
    if not token.HasField("logprob"):
        return None
    candidates = {str(token.token_id): _candidate(token.token, token.logprob, token.rank)}
    for rank, other in enumerate(token.top[:num_top], 1):
        candidates.setdefault(str(other.token_id), _candidate(other.token, other.logprob, rank))
    return candidates


def _candidate(token: bytes, logprob: float, rank: int) -> PromptLogprob:
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
