"""vLLM: `/v1/completions` with `return_token_ids`. It ignores fields that it does not know."""

from collections.abc import Sequence
from typing import Any, Final

import orjson

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
    served_model,
    token_ids,
)
from inference_svc.upstream.faults import AnswerInvalid, RequestRefused
from inference_svc.upstream.target import UpstreamTarget

_SEEDS: Final = 1 << 63
_GATHERED: Final = 8
"""Tokens in an event for a caller that waits for the whole answer. As many may be lost with an
engine, or be written beyond a stop text, and the limit between tokens is between events."""
_MAX_LOGPROBS: Final = 20
"""The default of --max-logprobs, which the server does not tell."""
_FORMS: Final = {
    OutputFormatKind.REGEX: "regex",
    OutputFormatKind.LARK: "grammar",
    OutputFormatKind.GBNF: "grammar",
}


class Vllm:
    """The API of vLLM."""

    name = "vllm"
    sampling = COMMON_SAMPLING | {"allowed_token_ids"}
    forms = frozenset(OutputFormatKind)
    grammar_flag = '--structured-outputs-config \'{"backend": "guidance"}\''
    brackets_are_control = True
    takes_min_tokens = True
    may_do_both = False
    mixes_adapters = False
    adapter_route = "/v1/load_lora_adapter"
    salt_field = "cache_salt"

    @staticmethod
    async def info(endpoint: Endpoint, target: UpstreamTarget) -> EngineInfo:
        version = members(await endpoint.call("GET", "/version"), "the answer of /version")
        chosen = await served_model(endpoint, target.model)
        parent = chosen.get("parent")  # of an adapter, whose own root has no tokenizer
        base = await served_model(endpoint, str(parent)) if parent else chosen
        return EngineInfo(
            version=str(version.get("version", "")),
            model=str(chosen.get("id", "")),
            revision=str(chosen.get("root", "")),
            tokenizer=str(base.get("root", "")),
            adapters=await listed_adapters(endpoint, target),
            context_tokens=positive(chosen.get("max_model_len")),
            max_logprobs=_MAX_LOGPROBS,
        )

    async def known_fields(self, endpoint: Endpoint, model: str) -> frozenset[str]:
        """It refuses values of a wrong type, and ignores fields that it does not know."""
        known = set()
        for name in (*sorted(self.sampling), "ignore_eos", "min_tokens", self.salt_field):
            body = {"model": model, "prompt": [0], "max_tokens": 1, name: WRONG_TYPE}
            try:
                await endpoint.call("POST", "/v1/completions", body)
            except RequestRefused:
                known.add(name)
        return frozenset(known)

    async def tokenize(self, endpoint: Endpoint, model: str, text: str) -> Sequence[int]:
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        answer = await endpoint.call("POST", "/tokenize", body)
        return token_ids(members(answer, "the answer of /tokenize").get("tokens"))

    def body(self, generation: Generation) -> tuple[str, dict[str, Any]]:
        request = generation.request
        values = effective_fields(request.sampling)
        body = {
            "model": generation.adapter or generation.model,
            "prompt": list(generation.tokens),
            "max_tokens": generation.max_tokens,
            "min_tokens": generation.min_tokens,
            "stream": True,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "seed": (request.seed + request.choice) % _SEEDS,
            "ignore_eos": request.ignore_eos,
            "temperature": values["temperature"],
            **{
                name: values[name]
                for name in self.sampling
                if name not in ("logit_bias", "allowed_token_ids")
            },
        }
        if request.is_gathered:
            body["stream_interval"] = _GATHERED
        if request.top_logprobs is not None:
            body["logprobs"] = request.top_logprobs
        if values["logit_bias"]:
            body["logit_bias"] = {str(token): bias for token, bias in values["logit_bias"]}
        if values["allowed_token_ids"]:
            body["allowed_token_ids"] = list(values["allowed_token_ids"])
        if request.cache_key:  # in hexadecimal digits: some characters of base64 are refused
            body[self.salt_field] = request.cache_key.hex()
        if request.constraint is not None:
            body["structured_outputs"] = _constraint(request.constraint, generation.takes_grammars)
        return "/v1/completions", body

    def reader(self, generation: Generation) -> AnswerReader:
        return _Reader(generation.request.top_logprobs)


def _constraint(constraint: Constraint, takes_grammars: bool) -> dict[str, Any]:
    form = constraint.form
    if takes_grammars or form is None:
        return {"grammar": single_lark(constraint.grammar)}
    if form.kind is OutputFormatKind.JSON_SCHEMA:
        return {"json": orjson.Fragment(form.text)}
    if form.kind is OutputFormatKind.CHOICES:
        return {"choice": orjson.Fragment(form.text)}
    return {_FORMS[form.kind]: form.text}


class _Reader:
    def __init__(self, top_logprobs: int | None) -> None:
        self._top_logprobs = top_logprobs

    def read(self, data: bytes) -> Chunk:
        if data == b"[DONE]":
            return Chunk()
        event = members(parse_json(data), "an event")
        if "error" in event:
            raise_error(event["error"])
        choices = event.get("choices")
        if not isinstance(choices, list):
            raise AnswerInvalid("an event has no choices")
        if not choices:
            return Chunk()
        choice = members(choices[0], "a choice")
        reason = choice.get("finish_reason")
        if (ids := choice.get("token_ids")) is None and not choice.get("text"):
            tokens: Sequence[int] = ()  # an end without a token
        else:
            tokens = token_ids(ids)
        if reason in ("abort", "error"):
            raise_error({"message": f"finish_reason {reason}"})
        logprobs: Sequence[TokenLogprob] = ()
        if self._top_logprobs is not None and tokens:
            logprobs = _logprobs(choice, len(tokens), self._top_logprobs)
        return Chunk(tokens, logprobs, reason is not None, reason == "length")


def _logprobs(choice: dict[str, Any], count: int, top: int) -> Sequence[TokenLogprob]:
    try:
        given = choice["logprobs"]
        own = [float(each) for each in given["token_logprobs"]]
        tops = [
            sorted(
                ((_token(name), float(value)) for name, value in each.items()),
                key=lambda item: -item[1],
            )[:top]
            for each in given["top_logprobs"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise AnswerInvalid("an event has no log probabilities") from None
    if len(own) != count or len(tops) != count:
        raise AnswerInvalid("an event has not one log probability for each token")
    return [TokenLogprob(*pair) for pair in zip(own, tops, strict=True)]


def _token(name: str) -> int:
    return int(name.removeprefix("token_id:"))
