"""What each kind of engine is to the rest: how a request is written, and an answer read.

`llama_server`, `vllm` and `sglang` implement `EngineApi`, and `openai` only `InfoApi`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn, Protocol

from inference_svc.engine.request import SequenceRequest
from inference_svc.output_format import OutputFormatKind
from inference_svc.upstream.endpoint import Endpoint
from inference_svc.upstream.faults import (
    AnswerInvalid,
    EngineLost,
    EngineOverloaded,
    EngineUnusable,
    RequestFailed,
    RequestRefused,
    TokensMissing,
    excerpt,
)
from inference_svc.upstream.target import UpstreamTarget

COMMON_SAMPLING: Final = frozenset(
    {
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "logit_bias",
    }
)
"""The fields of `Sampling`, beside the temperature, that every kind takes."""
WRONG_TYPE: Final = {"no": ["such", "type"]}
"""A value that no field takes."""


class TokenLogprob(NamedTuple):
    """The log probability of an output token, and those of the most probable ones by token."""

    logprob: float
    top: Sequence[tuple[int, float]]


UNKNOWN: Final = TokenLogprob(float("nan"), ())
"""Of a token whose log probability the engine did not tell."""


class Chunk(NamedTuple):
    """A part of an answer. `logprobs` has an item for each token, or none at all.

    `is_end`: the engine ends the answer; `at_limit`: because of a limit of tokens.
    """

    tokens: Sequence[int] = ()
    logprobs: Sequence[TokenLogprob] = ()
    is_end: bool = False
    at_limit: bool = False
    cached_tokens: int = 0


class EngineInfo(NamedTuple):
    """What an engine reports of itself; None: nothing. `revision` is anything else that
    identifies its model, such as the number of its parameters; `tokenizer` is a path there or
    owner/repository[@revision], or empty. `adapters` are those of the target that it lists, by
    name, with what its requests call them."""

    version: str
    model: str
    revision: str = ""
    tokenizer: str = ""
    adapters: Mapping[str, str | int] = {}
    context_tokens: int | None = None
    slots: int | None = None
    max_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """A request on the wire: what is asked of the engine, for `tokens` as the prompt.

    `model` is the engine's name of the model; with `takes_grammars` a constraint is sent as our
    grammar, otherwise in its own form. `adapters` are all of the target, as the engine calls them,
    with their scales, 0 for those that the request does not use.
    """

    request: SequenceRequest
    model: str
    tokens: Sequence[int]
    max_tokens: int
    min_tokens: int = 0
    takes_grammars: bool = False
    adapters: Sequence[tuple[str | int, float]] = ()

    @property
    def adapter(self) -> str | int | None:
        """The only one that the request uses, if any, at an engine that does not mix them."""
        return next((each for each, scale in self.adapters if scale), None)


class AnswerReader(Protocol):
    """Reads the events of one answer."""

    def read(self, data: bytes) -> Chunk:
        """Read the data of an event. Raises `EngineFault`."""


class InfoApi(Protocol):
    """One kind of engine, of which no more is known than what it tells of itself."""

    name: str

    async def info(self, endpoint: Endpoint, target: UpstreamTarget) -> EngineInfo:
        """Ask an engine for its version, the model and the adapters. Raises `EngineFault`;
        `EngineUnusable` if it has no such model."""


class EngineApi(InfoApi, Protocol):
    """One kind of engine with token ids. `sampling` are the fields of `Sampling`, and `forms` the
    constraint kinds that its versions may honour; `grammar_flag` is with what it takes our
    grammars, `brackets_are_control` and `mixes_adapters` as in `Features`. Where it `may_do_both`,
    an engine that embeds may also generate. `adapter_route` loads an adapter, if one does, and
    `salt_field` has the salt of a prefix, if one has."""

    sampling: frozenset[str]
    forms: frozenset[OutputFormatKind]
    grammar_flag: str
    brackets_are_control: bool
    takes_min_tokens: bool
    may_do_both: bool
    mixes_adapters: bool
    adapter_route: str
    salt_field: str

    async def known_fields(self, endpoint: Endpoint, model: str) -> frozenset[str]:
        """The fields that act, by our names: of `sampling`, "ignore_eos" and "min_tokens"; and
        `salt_field`."""

    async def tokenize(self, endpoint: Endpoint, model: str, text: str) -> Sequence[int]:
        """The token ids of a text whose control tokens are parsed, without any that the model
        expects around it."""

    def body(self, generation: Generation) -> tuple[str, dict[str, Any]]:
        """The path and the JSON of a request that is streamed."""

    def reader(self, generation: Generation) -> AnswerReader:
        """A reader of its answer."""


def token_ids(value: Any) -> Sequence[int]:
    """Check a list of token ids. Whether they are in the vocabulary is checked with the others."""
    if value is None:
        raise TokensMissing("it answered without token ids")
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        raise AnswerInvalid(f"it sent no list of token ids: {excerpt(str(value))}")
    return value


def members(value: Any, what: str) -> dict[str, Any]:
    """Check a JSON object."""
    if not isinstance(value, dict):
        raise AnswerInvalid(f"{what} is no JSON object: {excerpt(str(value))}")
    return value


def listed_models(value: Any) -> list[dict[str, Any]]:
    """Check the answer of `/v1/models`. Raises `EngineLost` if it lists none, as while it loads."""
    entries = members(value, "the answer of /v1/models").get("data")
    if not isinstance(entries, list):
        raise AnswerInvalid(f"the answer of /v1/models has no list: {excerpt(str(value))}")
    if not entries:
        raise EngineLost("it lists no model yet")
    return [members(each, "a model") for each in entries]


async def served_model(endpoint: Endpoint, model: str, path: str = "/v1/models") -> dict[str, Any]:
    """The entry of a model in `/v1/models`. Raises `EngineUnusable` if it is not there, or if
    the name is empty and there are several."""
    models = listed_models(await endpoint.call("GET", path))
    names = [str(each.get("id", "")) for each in models]
    if model:
        if model not in names:
            raise EngineUnusable(f"it serves no model {model!r}, but {names[:5]}")
        return models[names.index(model)]
    bases = [each for each in models if not each.get("parent")]
    if len(bases) != 1:
        raise EngineUnusable(f"it serves {len(bases)} models ({names[:5]}); name one of them")
    return bases[0]


async def listed_adapters(endpoint: Endpoint, target: UpstreamTarget) -> dict[str, str | int]:
    """The adapters of the target that are in `/v1/models`, where they have a parent."""
    if not target.adapters:
        return {}
    models = listed_models(await endpoint.call("GET", "/v1/models"))
    names = {str(each.get("id")) for each in models if each.get("parent")}
    return {name: name for name in target.adapters if name in names}


def positive(value: Any) -> int | None:
    """A number that an engine tells, None if it does not."""
    return value if type(value) is int and value > 0 else None


def raise_error(error: Any) -> NoReturn:
    """Raise the fault of an error inside a stream."""
    details = error if isinstance(error, dict) else {}
    code, problem = details.get("code"), f"it sent an error: {excerpt(str(error))}"
    if code in (429, 503):
        raise EngineOverloaded(problem)
    if isinstance(code, int) and 400 <= code < 500:
        raise RequestRefused(problem, code, error)
    raise RequestFailed(problem)
