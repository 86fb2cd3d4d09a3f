"""What the stand-ins of engines share: requests for tokens, what was written, errors.

`engine_stand_in` has the HTTP and the tokens, `engine_kinds` the bodies of each kind.
"""

import functools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from llguidance import LLMatcher, grammar_from

from inference_svc.llama.vocabulary import Vocabulary
from tests.support.engine_exchanges import recordings


class Refused(Exception):
    """A request that is answered with an error. `kind` is its type in the words of the engine.

    `is_late`: the engine itself refuses it. vLLM and SGLang have begun the stream by then, with
    status 200.
    """

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        kind: str = "invalid_request_error",
        is_late: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.headers = status, kind, headers or {}
        self.is_late = is_late


class TooLong(Refused):
    """A prompt of more tokens than the context has room for."""

    def __init__(self, num_tokens: int, context_tokens: int) -> None:
        super().__init__(f"{num_tokens} tokens exceed the context of {context_tokens}")
        self.num_tokens, self.context_tokens = num_tokens, context_tokens


@dataclass
class EngineState:
    """What an engine is, which tests may change.

    `source` is where it says that its tokenizer is, `adapters` are what it has loaded. `slots`
    requests run at once, `max_queued` wait (None: any number). With `takes_grammars` it takes Lark
    as llguidance does. A step, in which each stream gets a token, takes `step_s`. With a
    `vector_size` it embeds, and of the kinds only llama-server generates too.
    """

    vocabulary: Vocabulary
    model: str = "demo"
    source: str = "demo-chat"
    adapters: list[str] = field(default_factory=list)
    slots: int = 4
    max_queued: int | None = None
    context_tokens: int = 2048
    takes_grammars: bool = True
    step_s: float = 0.0
    vector_size: int | None = None
    num_running: int = 0
    num_waiting: int = 0


@dataclass(frozen=True)
class Asked:
    """A request for tokens. `grammar` is for llguidance, `top_logprobs` None without logprobs."""

    prompt: Sequence[int]
    max_tokens: int
    is_streamed: bool
    ignores_end: bool
    top_logprobs: int | None
    grammar: str | None
    body: Mapping[str, Any]


@dataclass
class Output:
    """What was written so far. `reason` is why it ends: "stop", "length", or "" so far."""

    asked: Asked
    tokens: list[int] = field(default_factory=list)
    reason: str = ""

    def add(self, token: int, reason: str) -> None:
        """Append a token; `reason` if it is the last one."""
        self.tokens.append(token)
        self.reason = reason


class Wire(Protocol):
    """One kind of engine. `begins_early`: a stream is begun before the engine has the request."""

    generate_path: str
    begins_early: bool

    def answer(self, path: str, body: Any) -> Any:
        """The JSON, or the text, of another route. Raises `Refused`."""

    def read(self, body: Any) -> Asked:
        """Read a request for tokens. Raises `Refused`."""

    def begin(self, output: Output) -> Iterator[str]:
        """The events before the first token."""

    def token(self, output: Output) -> Iterator[str]:
        """The events of the last token."""

    def end(self, output: Output) -> Iterator[str]:
        """The events after the last token."""

    def unary(self, output: Output) -> Any:
        """The answer to a request that is not streamed."""

    def error(self, refusal: Refused) -> Any:
        """The JSON of an error."""


class Engine:
    """What all kinds do alike."""

    def __init__(self, state: EngineState) -> None:
        self.state = state

    def begin(self, output: Output) -> Iterator[str]:
        """No kind but llama-server has events before the first token."""
        yield from ()

    def adapter_entries(self) -> list[dict[str, Any]]:
        """The adapters in `/v1/models`."""
        parent = self.state.model
        return [
            {"id": name, "object": "model", "root": f"/loras/{name}", "parent": parent}
            for name in self.state.adapters
        ]

    def text(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens; those outside the vocabulary have none."""
        vocabulary = self.state.vocabulary
        known = (each for each in tokens if 0 <= each < vocabulary.size)
        return b"".join(vocabulary.piece(each, special) for each in known).decode(errors="replace")

    def tokenize(self, text: str, *, parse_special: bool = True) -> list[int]:
        """The tokens of a text alone."""
        vocabulary = self.state.vocabulary
        return vocabulary.tokenize(text, add_special=False, parse_special=parse_special)

    def check_prompt(self, prompt: Any, limit: int | None) -> tuple[list[int], int]:
        """Check a prompt of ids; return it with the limit of output that the context has room for.

        Raises `Refused`.
        """
        if not isinstance(prompt, list) or not prompt:
            raise Refused("the prompt is no list of token ids")
        if any(not 0 <= token < self.state.vocabulary.size for token in prompt):
            raise Refused("a token id is out of vocabulary", is_late=True)
        room = self.state.context_tokens - len(prompt)
        if room <= 0:
            raise TooLong(len(prompt), self.state.context_tokens)
        return prompt, room if limit is None or limit < 0 else min(limit, room)

    def embeddings(self, body: Any, known: Mapping[str, Any]) -> Any:
        """The answer of `/v1/embeddings`; its fields but for the vectors are as `known`. Raises
        `Refused`."""
        inputs = body["input"] if isinstance(body["input"][0], list) else [body["input"]]
        if not all(inputs):
            raise Refused("Input content cannot be empty")
        if any(not 0 <= each < self.state.vocabulary.size for item in inputs for each in item):
            raise Refused("Prompt contains invalid tokens")
        data = [
            {"embedding": self._vector(item), "index": index, "object": "embedding"}
            for index, item in enumerate(inputs)
        ]
        count = sum(map(len, inputs))
        usage = {"prompt_tokens": count, "total_tokens": count}
        return {**known, "model": self.state.model, "object": "list", "usage": usage, "data": data}

    def _vector(self, tokens: Sequence[int]) -> list[float]:
        """A vector of length 1, which depends on all tokens and on their order."""
        size = self.state.vector_size or 1
        values = [0.5] * size
        for position, token in enumerate(tokens):
            values[(token * 31 + position * 7) % size] += 1.0
        length = math.hypot(*values)
        return [value / length for value in values]

    def most_probable(self, token: int, count: int) -> list[tuple[int, float]]:
        """That many tokens with log probabilities, the written one first."""
        others = (each for each in range(self.state.vocabulary.size) if each != token)
        tokens = [token, *(next(others) for _ in range(count - 1))][:count]
        return [(each, -0.25 * (rank + 1)) for rank, each in enumerate(tokens)]


def event(value: Any) -> str:
    """A server-sent event with JSON."""
    return f"data: {json.dumps(value)}\n\n"


def compile_grammar(kind: str, text: str) -> str:
    """A grammar for llguidance. Raises `Refused` if it is invalid."""
    try:
        grammar: str = grammar_from(kind, text)  # type: ignore[arg-type]  # one of its names
    except ValueError as error:
        raise Refused(f"Invalid grammar: {error}", is_late=True) from None
    if problem := LLMatcher.validate_grammar(grammar, None):
        raise Refused(f"Grammar error: {problem}", is_late=True)
    return grammar


@functools.cache
def recorded(kind: str, name: str) -> str:
    """The JSON that a real engine answered to the exchange of this name."""
    return next(answer.text for line, answer in recordings(kind) if line["name"] == name)
