"""SGLang: `/generate` with token ids. It refuses sampling parameters that it does not know."""

from collections.abc import Sequence
from typing import Any, Final

from inference_svc.engine.constraint import Constraint
from inference_svc.engine_client.features import effective_fields
from inference_svc.output_format import OutputFormatKind
from inference_svc.structured_output.notations import single_lark
from inference_svc.upstream.endpoint import Endpoint, parse_json
from inference_svc.upstream.engine_api import (
    COMMON_SAMPLING,
    WRONG_TYPE,
    AnswerReader,
    Chunk,
    EngineInfo,
    Generation,
    TokenLogprob,
    listed_adapters,
    members,
    positive,
    raise_error,
    token_ids,
)
from inference_svc.upstream.faults import AnswerInvalid, EngineUnusable, RequestRefused
from inference_svc.upstream.target import UpstreamTarget

_MAX_LOGPROBS: Final = 20
_SEEDS: Final = 1 << 31
_FORMS: Final = {
    OutputFormatKind.JSON_SCHEMA: "json_schema",
    OutputFormatKind.REGEX: "regex",
    OutputFormatKind.GBNF: "ebnf",
    OutputFormatKind.LARK: "ebnf",
}
_OTHER_NAMES: Final = {"min_tokens": "min_new_tokens"}


class Sglang:
    """The native API of SGLang."""

    name = "sglang"
    sampling = COMMON_SAMPLING
    forms = frozenset(_FORMS)
    grammar_flag = "--grammar-backend llguidance"
    brackets_are_control = True
    takes_min_tokens = True
    may_do_both = False
    mixes_adapters = False
    adapter_route = "/load_lora_adapter"
    salt_field = "extra_key"

    @staticmethod
    async def info(endpoint: Endpoint, target: UpstreamTarget) -> EngineInfo:
        told = members(await endpoint.call("GET", "/server_info"), "the answer of /server_info")
        name = str(told.get("served_model_name") or told.get("model_path") or "")
        if "model_path" not in told:
            raise AnswerInvalid("the answer of /server_info has no model_path")
        if target.model not in ("", name):
            raise EngineUnusable(f"it serves no model {target.model!r}, but {name!r}")
        path, revision = str(told["model_path"]), told.get("revision")
        repository = f"{path}@{revision}" if revision and not path.startswith("/") else path
        tokenizer = str(told.get("tokenizer_path") or path)
        return EngineInfo(
            version=str(told.get("version", "")),
            model=name,
            revision=f"{told.get('model_path')}@{told.get('revision') or ''}",
            tokenizer=repository if tokenizer == path else tokenizer,
            adapters=await listed_adapters(endpoint, target),
            context_tokens=positive(told.get("context_length"))
            or positive(told.get("max_req_input_len")),
            slots=positive(told.get("max_running_requests")),
            max_logprobs=_MAX_LOGPROBS,
        )

    async def known_fields(self, endpoint: Endpoint, model: str) -> frozenset[str]:
        """It fails where it is sent a parameter of sampling that it lacks, and refuses other fields
        that have a wrong type."""
        values = {name: 1 for name in self.sampling} | {"logit_bias": {"1": 0.0}, "top_k": 1}
        values |= {"ignore_eos": True, "min_tokens": 0}
        known = set()
        for name, value in values.items():
            sampling = {"max_new_tokens": 1, _OTHER_NAMES.get(name, name): value}
            body = {"input_ids": [0], "sampling_params": sampling}
            try:
                await endpoint.call("POST", "/generate", body)
            except RequestRefused:
                continue
            known.add(name)
        body = {"input_ids": [0], "sampling_params": {"max_new_tokens": 1}}
        try:
            await endpoint.call("POST", "/generate", {**body, self.salt_field: WRONG_TYPE})
        except RequestRefused:
            known.add(self.salt_field)
        return frozenset(known)

    async def tokenize(self, endpoint: Endpoint, model: str, text: str) -> Sequence[int]:
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        answer = await endpoint.call("POST", "/v1/tokenize", body)
        return token_ids(members(answer, "the answer of /v1/tokenize").get("tokens"))

    def body(self, generation: Generation) -> tuple[str, dict[str, Any]]:
        request = generation.request
        values = effective_fields(request.sampling)
        sampling = {
            "temperature": values["temperature"],
            **{name: values[name] for name in self.sampling if name != "logit_bias"},
            "top_k": values["top_k"] or -1,
            "max_new_tokens": generation.max_tokens,
            "min_new_tokens": generation.min_tokens,
            "ignore_eos": request.ignore_eos,
            "sampling_seed": (request.seed + request.choice) % _SEEDS,
        }
        if values["logit_bias"]:
            sampling["logit_bias"] = {str(token): bias for token, bias in values["logit_bias"]}
        if request.constraint is not None:
            sampling |= _constraint(request.constraint, generation.takes_grammars)
        body = {"input_ids": list(generation.tokens), "sampling_params": sampling, "stream": True}
        if request.top_logprobs is not None:
            body |= {"return_logprob": True, "top_logprobs_num": request.top_logprobs}
        if generation.adapter is not None:
            body["lora_path"] = generation.adapter
        if request.cache_key:
            body[self.salt_field] = request.cache_key.hex()
        return "/generate", body

    def reader(self, generation: Generation) -> AnswerReader:
        return _Reader(generation.request.top_logprobs)


def _constraint(constraint: Constraint, takes_grammars: bool) -> dict[str, Any]:
    form = constraint.form
    if takes_grammars or form is None:
        return {"ebnf": single_lark(constraint.grammar)}
    return {_FORMS[form.kind]: form.text}


class _Reader:
    """Its events have all tokens so far, or with --incremental-streaming-output the new ones."""

    def __init__(self, top_logprobs: int | None) -> None:
        self._top_logprobs = top_logprobs
        self._num_read = 0

    def read(self, data: bytes) -> Chunk:
        if data == b"[DONE]":
            return Chunk()
        event = members(parse_json(data), "an event")
        if "error" in event:
            raise_error(event["error"])
        meta = members(event.get("meta_info"), "its meta_info")
        count = meta.get("completion_tokens")
        if type(count) is not int or count < self._num_read:
            raise AnswerInvalid("an event does not tell how many tokens there are")
        sent = token_ids(event.get("output_ids"))
        num_new = min(count - self._num_read, len(sent))
        tokens = sent[len(sent) - num_new :]
        self._num_read += num_new
        logprobs: Sequence[TokenLogprob] = ()
        if self._top_logprobs is not None and tokens:
            logprobs = _logprobs(meta, num_new)
        reason = meta.get("finish_reason")
        details = reason if isinstance(reason, dict) else {"type": reason}
        kind = details.get("type")
        if kind == "abort":  # also of a full queue, with 503
            raise_error({"code": details.get("status_code"), "message": details.get("message")})
        cached = meta.get("cached_tokens")
        return Chunk(
            tokens,
            logprobs,
            kind is not None,
            kind == "length",
            cached if type(cached) is int else 0,
        )


def _logprobs(meta: dict[str, Any], count: int) -> Sequence[TokenLogprob]:
    """The last ones of the lists, of (log probability, token, text)."""
    try:
        own = [float(value) for value, *_ in meta["output_token_logprobs"][-count:]]
        tops = [
            [(token, float(value)) for value, token, *_ in each or ()]
            for each in (meta.get("output_top_logprobs") or [()] * count)[-count:]
        ]
        return [TokenLogprob(*pair) for pair in zip(own, tops, strict=True)]
    except (KeyError, TypeError, ValueError):
        raise AnswerInvalid("an event has no log probabilities") from None
