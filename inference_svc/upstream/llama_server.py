"""llama-server: `/completion` with token ids.

A streamed event has the last token only: the tokens of an unfinished UTF-8 character are not sent,
but their text is, with that of the token that ends the character. They are found by their bytes.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import orjson

from inference_svc.engine.constraint import Constraint
from inference_svc.engine.sampling_params import (
    LLAMA_CPP_ORDER,
    Adaptive,
    Dry,
    Mirostat,
    Sampling,
    Stage,
)
from inference_svc.engine_client.features import effective_fields
from inference_svc.models.metadata import default_name
from inference_svc.output_format import OutputFormatKind
from inference_svc.structured_output.notations import gbnf_choices, single_lark
from inference_svc.upstream.endpoint import Endpoint, parse_json
from inference_svc.upstream.engine_api import (
    COMMON_SAMPLING,
    UNKNOWN,
    AnswerReader,
    Chunk,
    EngineInfo,
    Generation,
    TokenLogprob,
    listed_models,
    members,
    positive,
    raise_error,
    token_ids,
)
from inference_svc.upstream.faults import AnswerInvalid, EngineUnusable, excerpt
from inference_svc.upstream.pieces import PieceIndex
from inference_svc.upstream.target import UpstreamTarget

_MAX_LOGPROBS: Final = 64
_SEEDS: Final = (1 << 32) - 1
"""The last number of 32 bits is llama.cpp's LLAMA_DEFAULT_SEED: it would choose a random one."""
_STAGES: Final[Mapping[Stage, str]] = {
    stage: "typ_p" if stage is Stage.TYPICAL_P else stage.value for stage in Stage
}
_FINAL_FIELDS: Final = ("tokens", "stop", "stop_type", "tokens_predicted", "timings")
"""Of the last event, which otherwise repeats the prompt and all settings."""
_RENAMED: Final = {"penalty_last_n": "repeat_last_n", "repetition_penalty": "repeat_penalty"}
_STRUCTURED: Final = ("dry", "mirostat", "adaptive", "logit_bias", "stages")


class LlamaServer:
    """The API of llama-server."""

    name = "llama-server"
    sampling = COMMON_SAMPLING | {
        "dynatemp_range",
        "dynatemp_exponent",
        "typical_p",
        "top_n_sigma",
        "xtc_probability",
        "xtc_threshold",
        "min_keep",
        "penalty_last_n",
        *_STRUCTURED,
    }
    forms = frozenset(
        {OutputFormatKind.JSON_SCHEMA, OutputFormatKind.GBNF, OutputFormatKind.CHOICES}
    )
    grammar_flag = "a build with LLAMA_LLGUIDANCE"
    brackets_are_control = False
    takes_min_tokens = False
    may_do_both = True
    mixes_adapters = True
    adapter_route = ""
    salt_field = ""

    def __init__(self, pieces: PieceIndex) -> None:
        self._pieces = pieces

    @staticmethod
    async def info(endpoint: Endpoint, target: UpstreamTarget) -> EngineInfo:
        model = target.model
        query = f"?model={quote(model, safe='')}" if model else ""
        props = members(await endpoint.call("GET", f"/props{query}"), "the answer of /props")
        models = listed_models(await endpoint.call("GET", "/v1/models"))
        names = [str(each.get("id", "")) for each in models]
        if model and model not in names:
            raise EngineUnusable(f"it serves no model {model!r}, but {names[:5]}")
        chosen = models[names.index(model) if model else 0]
        meta = members(chosen.get("meta") or {}, "the meta of its model")
        settings = members(props.get("default_generation_settings"), "its settings")
        return EngineInfo(
            version=str(props.get("build_info", "")),
            model=str(chosen.get("id", "")),
            revision=f"{meta.get('n_params', '')}/{meta.get('size', '')}",
            tokenizer=str(props.get("model_path", "")),
            adapters=await _adapters(endpoint, target),
            context_tokens=positive(settings.get("n_ctx")),
            slots=positive(props.get("total_slots")),
            max_logprobs=_MAX_LOGPROBS,
        )

    async def known_fields(self, endpoint: Endpoint, model: str) -> frozenset[str]:
        """It repeats the settings of a request in its answer: those that it read act."""
        asked = _sampling(effective_fields(_DISTINCT), 0) | {"ignore_eos": True}
        body = {"prompt": [0], "n_predict": 1, "stream": False, **asked}
        if model:
            body["model"] = model
        answer = members(await endpoint.call("POST", "/completion", body), "an answer")
        told = members(answer.get("generation_settings"), "its settings")
        known = {name for name, value in asked.items() if _is_same(told.get(name), value)}
        ours = {name for name in self.sampling if _RENAMED.get(name, name) in known}
        structured = {
            "dry": "dry_multiplier",
            "mirostat": "mirostat_tau",
            "adaptive": "adaptive_target",
            "stages": "samplers",
            "logit_bias": "logit_bias",
        }
        ours |= {name for name, theirs in structured.items() if theirs in known}
        return frozenset(ours | (known & {"ignore_eos"}))

    async def tokenize(self, endpoint: Endpoint, model: str, text: str) -> Sequence[int]:
        body = {"content": text, "add_special": False, "parse_special": True}
        if model:
            body["model"] = model
        answer = await endpoint.call("POST", "/tokenize", body)
        return token_ids(members(answer, "the answer of /tokenize").get("tokens"))

    def body(self, generation: Generation) -> tuple[str, dict[str, Any]]:
        request = generation.request
        window = len(generation.tokens) + generation.max_tokens
        body = {
            "prompt": list(generation.tokens),
            "n_predict": generation.max_tokens,
            "stream": True,
            "return_progress": True,
            "cache_prompt": request.reuse,
            "seed": (request.seed + request.choice) % _SEEDS,
            "ignore_eos": request.ignore_eos,
            "n_probs": 0 if request.top_logprobs is None else max(request.top_logprobs, 1),
            "response_fields": _FINAL_FIELDS,
            **_sampling(effective_fields(request.sampling), window),
        }
        if generation.model:
            body["model"] = generation.model
        if generation.adapters:  # an empty list would leave it to apply all of them
            body["lora"] = [{"id": each, "scale": scale} for each, scale in generation.adapters]
        if request.constraint is not None:
            body |= _constraint(request.constraint, generation.takes_grammars)
        return "/completion", body

    def reader(self, generation: Generation) -> AnswerReader:
        return _Reader(self._pieces, generation.request.top_logprobs)


async def _adapters(endpoint: Endpoint, target: UpstreamTarget) -> dict[str, str | int]:
    """Their numbers; it knows them by their files."""
    if not target.adapters:
        return {}
    listed = await endpoint.call("GET", "/lora-adapters")
    if not isinstance(listed, list):
        raise AnswerInvalid(f"the answer of /lora-adapters is no list: {excerpt(str(listed))}")
    found: dict[str, str | int] = {}
    for each in (members(each, "an adapter") for each in listed):
        name, number = default_name(Path(str(each.get("path", "")))), each.get("id")
        if name in target.adapters and type(number) is int:
            found[name] = number
    return found


_DISTINCT: Final = Sampling(
    temperature=0.75,
    dynatemp_range=0.25,
    dynatemp_exponent=1.5,
    top_k=7,
    top_p=0.875,
    min_p=0.125,
    typical_p=0.625,
    top_n_sigma=2.5,
    xtc_probability=0.25,
    xtc_threshold=0.375,
    min_keep=3,
    penalty_last_n=33,
    repetition_penalty=1.25,
    frequency_penalty=0.5,
    presence_penalty=0.75,
    dry=Dry(0.5, 1.5, 3, 17, ("!",)),
    mirostat=Mirostat(1, 4.5, 0.25),
    adaptive=Adaptive(0.25, 0.75),
    logit_bias=((1, -1.5),),
    stages=(*LLAMA_CPP_ORDER[1:], LLAMA_CPP_ORDER[0]),
)
"""Values that are not the defaults of llama.cpp, and exact in float32."""


def _is_same(told: Any, asked: Any) -> bool:
    """Whether the settings that it tells are those that it was sent; biases have names there."""
    if isinstance(asked, list) and asked and isinstance(asked[0], list):
        pairs = [[each.get("token"), each.get("bias")] for each in told or ()]
        return all(each in pairs for each in asked)  # ignore_eos adds others
    return bool(told == (list(asked) if isinstance(asked, tuple) else asked))


def _sampling(values: dict[str, Any], window: int) -> dict[str, Any]:
    """`window` is what it is sent for a window of all tokens (-1), which it refuses."""
    body = {
        _RENAMED.get(name, name): value
        for name, value in values.items()
        if name not in _STRUCTURED and name != "allowed_token_ids"
    }
    body["samplers"] = [_STAGES[stage] for stage in values["stages"]]
    body["logit_bias"] = [list(pair) for pair in values["logit_bias"]]
    if values["penalty_last_n"] < 0:
        body["repeat_last_n"] = window
    dry, mirostat, adaptive = values["dry"], values["mirostat"], values["adaptive"]
    body["dry_multiplier"] = 0.0 if dry is None else dry.multiplier
    if dry is not None:
        body |= {
            "dry_base": dry.base,
            "dry_allowed_length": dry.allowed_length,
            "dry_penalty_last_n": dry.penalty_last_n if dry.penalty_last_n >= 0 else window,
            "dry_sequence_breakers": dry.sequence_breakers,
        }
    body["mirostat"] = 0 if mirostat is None else mirostat.version
    if mirostat is not None:
        body |= {"mirostat_tau": mirostat.tau, "mirostat_eta": mirostat.eta}
    if adaptive is not None:
        body |= {"adaptive_target": adaptive.target, "adaptive_decay": adaptive.decay}
        body["samplers"].append("adaptive_p")
    return body


def _constraint(constraint: Constraint, takes_grammars: bool) -> dict[str, Any]:
    form = constraint.form
    if takes_grammars or form is None:
        return {"grammar": f"%llguidance {{}}\n{single_lark(constraint.grammar)}"}
    if form.kind is OutputFormatKind.JSON_SCHEMA:
        return {"json_schema": orjson.Fragment(form.text)}
    if form.kind is OutputFormatKind.CHOICES:
        return {"grammar": gbnf_choices(json.loads(form.text))}
    return {"grammar": form.text}


class _Reader:
    def __init__(self, pieces: PieceIndex, top_logprobs: int | None) -> None:
        self._pieces = pieces
        self._top_logprobs = top_logprobs
        self._num_written = 0

    def read(self, data: bytes) -> Chunk:
        event = members(parse_json(data), "an event")
        if "error" in event:
            raise_error(event["error"])
        if event.get("stop") is True:
            kind = event.get("stop_type")
            return Chunk((), (), True, kind == "limit")
        if event.get("prompt_progress") is not None:
            return Chunk()  # its cache is of all projects, so what was in it is not passed on
        tokens = token_ids(event.get("tokens"))
        content = event.get("content")
        if not isinstance(content, str):
            raise AnswerInvalid("an event has no content")
        count = event.get("tokens_predicted")
        if tokens:
            text = content.encode("utf-8", "surrogatepass")
            added = count - self._num_written if type(count) is int else None
            tokens = self._pieces.with_missing(tokens, text, added)
        if type(count) is int:
            self._num_written = count
        if self._top_logprobs is None:
            return Chunk(tokens)
        return Chunk(tokens, _logprobs(event, tokens, self._top_logprobs))


def _logprobs(event: dict[str, Any], tokens: Sequence[int], top: int) -> Sequence[TokenLogprob]:
    """Those of the last token; tokens that were not sent have none."""
    try:
        (item,) = event["completion_probabilities"]
        best = [(each["id"], float(each["logprob"])) for each in item["top_logprobs"][:top]]
        found = TokenLogprob(float(item["logprob"]), best)
    except (KeyError, TypeError, ValueError):
        raise AnswerInvalid("an event has no log probabilities") from None
    return (*(UNKNOWN,) * (len(tokens) - 1), found)
