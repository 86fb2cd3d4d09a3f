"""The bodies that vLLM, SGLang and llama-server take and write, for their stand-ins.

What a real engine answered (tests/data/engines) is repeated, but for what the request and the
vocabulary tell. SGLang is as its sources are (0.5.23), since it does not run on a CPU.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from tests.support.engine_wire import (
    Asked,
    Engine,
    EngineState,
    Output,
    Refused,
    TooLong,
    Wire,
    compile_grammar,
    event,
    recorded,
)

_LARK: Final = "%llguidance"
_FINGERPRINT: Final = "vllm-0.32.0-stand-in"
_VECTOR_SIZE: Final = 256
_NUMBER: Final = (int, float, type(None))
_VLLM_FIELDS: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), _NUMBER),
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "top_k", "seed"), _NUMBER),
    **dict.fromkeys(("logprobs", "max_tokens", "min_tokens"), _NUMBER),
    "ignore_eos": (bool,),
    "stream_interval": (int,),
    "logit_bias": (dict, type(None)),
    "allowed_token_ids": (list, type(None)),
}
_SGLANG_FIELDS: Final = frozenset(
    {
        *("max_new_tokens", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p"),
        *("top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"),
        *("min_new_tokens", "n", "json_schema", "regex", "ebnf", "structural_tag", "ignore_eos"),
        *("skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim"),
        *("stream_interval", "logit_bias", "sampling_seed", "custom_params"),
    }
)
_VLLM_KINDS: Final[Mapping[str, str]] = {
    "json": "json_schema",
    "json_object": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
}


class LlamaServer(Engine):
    """Events with the tokens since the last one, and an end that repeats all settings."""

    generate_path = "/completion"
    begins_early = False

    def answer(self, path: str, body: Any) -> Any:
        """The routes beside `/completion`."""
        state = self.state
        match path:
            case "/health":
                return json.loads(recorded("llama_server", "health"))
            case "/props":
                props = json.loads(recorded("llama_server", "props"))
                props["default_generation_settings"]["n_ctx"] = state.context_tokens
                told = {"total_slots": state.slots, "model_path": state.source}
                return props | told | {"model_alias": state.model}
            case "/v1/models":
                models = json.loads(recorded("llama_server", "models"))
                models["data"][0]["id"] = state.model
                return models
            case "/lora-adapters":
                return [
                    {"id": number, "path": f"loras/{name}.gguf", "scale": 1.0}
                    for number, name in enumerate(state.adapters)
                ]
            case "/tokenize":
                special = body.get("parse_special", True)
                return {"tokens": self.tokenize(body["content"], parse_special=special)}
            case "/detokenize":
                return {"content": self.text(body["tokens"], special=True)}
            case "/v1/embeddings" if state.vector_size is None:
                problem = "This server does not support embeddings. Start it with `--embeddings`"
                raise Refused(problem, 501, kind="not_supported_error")
            case "/v1/embeddings":
                return self.embeddings(body, {})
        raise Refused("File Not Found", 404, kind="not_found_error")

    def read(self, body: Any) -> Asked:
        """Read the body of `/completion`. `stop` is ignored."""
        if not isinstance(body, dict):
            raise Refused("the body is not JSON", 500, kind="server_error")
        prompt, limit = self.check_prompt(body.get("prompt"), body.get("n_predict"))
        text, grammar = body.get("grammar") or "", None
        if text.startswith(_LARK) and not self.state.takes_grammars:
            raise Refused("failed to parse grammar: llguidance is not enabled")
        for name in ("repeat_last_n", "dry_penalty_last_n"):
            if body.get(name, 0) < 0:
                raise Refused(f"Field '{name}': Value must be between 0 <= value <= 2147483647")
        if not isinstance(body.get("temperature", 0), int | float):
            raise Refused("Field 'temperature': type must be number")
        if text:
            grammar = compile_grammar("grammar", text)
        elif body.get("json_schema") is not None:
            grammar = compile_grammar("json_schema", json.dumps(body["json_schema"]))
        count = body.get("n_probs") or None
        ignores_end = bool(body.get("ignore_eos"))
        return Asked(prompt, limit, bool(body.get("stream")), ignores_end, count, grammar, body)

    def begin(self, output: Output) -> Iterator[str]:
        """The progress of the prompt, if it was asked for."""
        if output.asked.body.get("return_progress"):
            total = len(output.asked.prompt)
            for processed in (0, total):
                progress = {"total": total, "cache": 0, "processed": processed, "time_ms": 1}
                yield event(self._partial(output) | {"tokens": [0], "prompt_progress": progress})

    def token(self, output: Output) -> Iterator[str]:
        """The end token has an event too."""
        token = output.tokens[-1]
        value = self._partial(output) | {"content": self.text([token]), "tokens": [token]}
        if output.asked.top_logprobs is not None:
            tops = self.most_probable(token, output.asked.top_logprobs)
            first = self._named(*tops[0]) | {"top_logprobs": [self._named(*each) for each in tops]}
            value["completion_probabilities"] = [first]
        yield event(value)

    def end(self, output: Output) -> Iterator[str]:
        """With `response_fields` only those of the last event."""
        final = self._final(output)
        fields = output.asked.body.get("response_fields")
        yield event({name: final[name] for name in fields if name in final} if fields else final)

    def unary(self, output: Output) -> Any:
        """All in one."""
        told = {"content": self.text(output.tokens), "tokens": output.tokens}
        return self._final(output) | told

    def error(self, refusal: Refused) -> Any:
        """The code is the status."""
        error = {"code": refusal.status, "message": str(refusal), "type": refusal.kind}
        if isinstance(refusal, TooLong):
            error["type"] = "exceed_context_size_error"
            error |= {"n_prompt_tokens": refusal.num_tokens, "n_ctx": refusal.context_tokens}
        return {"error": error}

    def _partial(self, output: Output) -> dict[str, Any]:
        return {
            "index": 0,
            "content": "",
            "tokens": [],
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": len(output.tokens),
            "tokens_evaluated": len(output.asked.prompt),
        }

    def _final(self, output: Output) -> dict[str, Any]:
        final: dict[str, Any] = json.loads(recorded("llama_server", "unary"))
        settings, body = final["generation_settings"], output.asked.body
        told = {name: value for name, value in body.items() if name in settings}
        told["logit_bias"] = self._biases(body)
        return {
            **final,
            **self._partial(output),
            "stop": True,
            "model": self.state.model,
            "generation_settings": settings | told,
            "prompt": self.text(output.asked.prompt, special=True),
            "stop_type": {"stop": "eos", "length": "limit"}.get(output.reason, "none"),
            "tokens_cached": len(output.asked.prompt) + len(output.tokens) - 1,
        }

    def _biases(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Those of `ignore_eos` are told as null, which is minus infinity."""
        biases = [{"bias": bias, "token": token} for token, bias in body.get("logit_bias", ())]
        if body.get("ignore_eos"):
            ends = sorted(self.state.vocabulary.end_tokens)
            biases += [{"bias": None, "token": token} for token in ends]
        return biases

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.text([token], special=True)
        return {"id": token, "token": text, "bytes": list(text.encode()), "logprob": logprob}


class Vllm(Engine):
    """Events with the tokens since the last one, of which the last one has the reason. The first
    one has a token, and others as many as `stream_interval` says."""

    generate_path = "/v1/completions"
    begins_early = True

    def answer(self, path: str, body: Any) -> Any:
        """The routes beside `/v1/completions`."""
        state = self.state
        match path:
            case "/health":
                return ""
            case "/version":
                return json.loads(recorded("vllm", "version"))
            case "/load":
                return {"server_load": state.num_running + state.num_waiting}
            case "/metrics":
                return (
                    f'vllm:num_requests_running{{engine="0"}} {state.num_running}\n'
                    f'vllm:num_requests_waiting{{engine="0"}} {state.num_waiting}\n'
                )
            case "/v1/models":
                models = json.loads(recorded("vllm", "models"))
                told = {"id": state.model, "max_model_len": state.context_tokens}
                models["data"][0] |= told | {"root": state.source}
                models["data"] += self.adapter_entries()
                return models
            case "/tokenize":
                tokens = self.tokenize(body["prompt"])
                length = state.context_tokens
                told = {"count": len(tokens), "max_model_len": length, "tokens": tokens}
                return told | {"token_strs": None}
            case "/detokenize":
                return {"prompt": self.text(body["tokens"], special=True)}
            case "/v1/embeddings" if state.vector_size is not None:
                return self.embeddings(body, {"id": "embd-1", "created": 1700000000})
        raise Refused("Not Found", 404, kind="no route")

    def read(self, body: Any) -> Asked:
        """Read the body of `/v1/completions`: known fields have a type, others are ignored."""
        if self.state.vector_size is not None:
            raise Refused("Not Found", 404, kind="no route")
        if not isinstance(body, dict):
            raise Refused("the body is not JSON")
        for name, types in _VLLM_FIELDS.items():
            if name in body and not isinstance(body[name], types):
                raise Refused(f"{name}: Input should be another type")
        if not all(isinstance(each, _NUMBER) for each in (body.get("logit_bias") or {}).values()):
            raise Refused("logit_bias: Input should be a valid number")
        if body.get("model") not in (None, self.state.model, *self.state.adapters):
            raise Refused(f"The model `{body['model']}` does not exist.", 404, kind="NotFoundError")
        prompt, limit = self.check_prompt(body.get("prompt"), body.get("max_tokens", 16))
        salt = body.get("cache_salt", "-")
        if not isinstance(salt, str) or not 0 < len(salt) <= 128 or set(salt) & set("@/\\\0"):
            raise Refused("Parameter 'cache_salt' must be at most 128 characters")
        count = body.get("logprobs")
        if count is not None and count > 20:
            raise Refused(f"Requested sample logprobs of {count}: more than 20", is_late=True)
        grammar = self._grammar(body.get("structured_outputs"))
        ignores_end = bool(body.get("ignore_eos"))
        return Asked(prompt, limit, bool(body.get("stream")), ignores_end, count, grammar, body)

    def _grammar(self, outputs: Any) -> str | None:
        if outputs is None:
            return None
        given = [(name, value) for name, value in outputs.items() if name in _VLLM_KINDS]
        if len(given) != 1:
            raise Refused("You can only use one kind of structured outputs constraint")
        ((name, value),) = given
        if name == "grammar" and "start:" in value and not self.state.takes_grammars:
            raise Refused("Failed to convert the grammar from Lark to EBNF", is_late=True)
        if name == "json_object":
            value = {"type": "object"}
        text = value if isinstance(value, str) else json.dumps(value)
        return compile_grammar(_VLLM_KINDS[name], text)

    def token(self, output: Output) -> Iterator[str]:
        """The first event has the prompt too."""
        count, interval = len(output.tokens), output.asked.body.get("stream_interval", 1)
        num_new = (count - 2) % interval + 1 if count > 1 else 1
        if not output.reason and count > 1 and num_new < interval:
            return
        choice = self._choice(output, output.tokens[-num_new:])
        if len(output.tokens) == 1 and output.asked.body.get("return_token_ids"):
            choice["prompt_token_ids"] = list(output.asked.prompt)
        value = self._head() | {"choices": [choice]}
        if output.reason and not self._tells_usage(output):
            value["system_fingerprint"] = _FINGERPRINT
        yield event(value)

    def end(self, output: Output) -> Iterator[str]:
        """The usage, if it was asked for, and "[DONE]"."""
        if self._tells_usage(output):
            told = {"choices": [], "usage": self._usage(output)}
            yield event(self._head() | told | {"system_fingerprint": _FINGERPRINT})
        yield "data: [DONE]\n\n"

    def unary(self, output: Output) -> Any:
        """All in one."""
        whole: dict[str, Any] = json.loads(recorded("vllm", "unary"))
        choice = whole["choices"][0] | self._choice(output, output.tokens)
        details = whole["usage"]["prompt_tokens_details"]
        usage = whole["usage"] | self._usage(output) | {"prompt_tokens_details": details}
        return whole | self._head() | {"choices": [choice], "usage": usage}

    def error(self, refusal: Refused) -> Any:
        """The code is the status."""
        if refusal.kind == "no route":
            return {"detail": str(refusal)}
        kind = "BadRequestError" if refusal.status == 400 else refusal.kind
        error = {"message": str(refusal), "type": kind, "param": None, "code": refusal.status}
        return {"error": error}

    def _head(self) -> dict[str, Any]:
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1700000000}
        return head | {"model": self.state.model}

    def _choice(self, output: Output, tokens: Sequence[int]) -> dict[str, Any]:
        asked, logprobs = output.asked, None
        if asked.top_logprobs is not None:
            count = max(asked.top_logprobs, 1)
            tops = [self.most_probable(token, count) for token in tokens]
            logprobs = {
                "text_offset": [0 for _ in tokens],
                "token_logprobs": [top[0][1] for top in tops],
                "tokens": [f"token_id:{token}" for token in tokens],
                "top_logprobs": [
                    {f"token_id:{each}": logprob for each, logprob in top} for top in tops
                ],
            }
        return {
            "index": 0,
            "text": self.text(tokens),
            "logprobs": logprobs,
            "finish_reason": output.reason or None,
            "stop_reason": None,
            "prompt_token_ids": None,
            "token_ids": list(tokens) if asked.body.get("return_token_ids") else None,
        }

    def _tells_usage(self, output: Output) -> bool:
        return bool((output.asked.body.get("stream_options") or {}).get("include_usage"))

    def _usage(self, output: Output) -> dict[str, Any]:
        num_prompt, num_output = len(output.asked.prompt), len(output.tokens)
        return {
            "prompt_tokens": num_prompt,
            "total_tokens": num_prompt + num_output,
            "completion_tokens": num_output,
            "prompt_tokens_details": {"cached_tokens": 0},
        }


class SGLang(Engine):
    """Each event has all tokens so far."""

    generate_path = "/generate"
    begins_early = True

    def answer(self, path: str, body: Any) -> Any:
        """The routes beside `/generate`."""
        state = self.state
        match path:
            case "/ready" | "/health":
                return ""
            case "/model_info":
                told = {"model_path": state.model, "served_model_name": state.model}
                return told | {"is_generation": True, "weight_version": "default"}
            case "/server_info":
                return {
                    "model_path": state.model,
                    "tokenizer_path": state.source,
                    "served_model_name": state.model,
                    "version": "0.5.23",
                    "context_length": state.context_tokens,
                    "max_running_requests": state.slots,
                    "grammar_backend": "llguidance" if state.takes_grammars else "xgrammar",
                    "internal_states": [{}],
                }
            case "/v1/models":
                model = {"id": state.model, "object": "model", "owned_by": "sglang"}
                limits = {"parent": None, "max_model_len": state.context_tokens}
                entries = [model | {"root": state.model} | limits, *self.adapter_entries()]
                return {"object": "list", "data": entries}
            case "/v1/tokenize" | "/tokenize":
                tokens = self.tokenize(body["prompt"])
                length = state.context_tokens
                return {"tokens": tokens, "count": len(tokens), "max_model_len": length}
            case "/v1/detokenize" | "/detokenize":
                return {"text": self.text(body["tokens"], special=True)}
            case "/v1/embeddings" if state.vector_size is None:
                raise Refused("This model does not appear to be an embedding model by default.")
            case "/v1/embeddings":
                return self.embeddings(body, {})
        raise Refused("Not Found", 404)

    def read(self, body: Any) -> Asked:
        """Read the body of `/generate`, which may have known fields only."""
        params = body.get("sampling_params") or {} if isinstance(body, dict) else {}
        if not isinstance(body, dict) or (unknown := set(params) - _SGLANG_FIELDS):
            raise Refused(f"unknown fields {sorted(unknown) if isinstance(body, dict) else ''}")
        if body.get("lora_path") not in (None, *self.state.adapters):
            raise Refused(f"The adapter {body['lora_path']} is not loaded")
        if not isinstance(body.get("extra_key"), str | list | None):
            raise Refused("extra_key: Input should be a valid string")
        prompt, limit = self.check_prompt(body.get("input_ids"), params.get("max_new_tokens", 128))
        grammar = None
        for name in ("json_schema", "regex", "ebnf"):
            if (text := params.get(name)) is not None:
                if "start:" in text and not self.state.takes_grammars:
                    raise Refused("the grammar is invalid", is_late=True)
                grammar = compile_grammar(name, text)
        count = body.get("top_logprobs_num", 0) if body.get("return_logprob") else None
        ignores_end = bool(params.get("ignore_eos"))
        return Asked(prompt, limit, bool(body.get("stream")), ignores_end, count, grammar, body)

    def token(self, output: Output) -> Iterator[str]:
        """All so far."""
        yield event(self.unary(output))

    def end(self, output: Output) -> Iterator[str]:
        """Only "[DONE]"."""
        yield "data: [DONE]\n\n"

    def unary(self, output: Output) -> Any:
        """All so far."""
        tokens, count = output.tokens, output.asked.top_logprobs
        meta: dict[str, Any] = {
            "id": "1",
            "finish_reason": None,
            "prompt_tokens": len(output.asked.prompt),
            "weight_version": "default",
            "num_retractions": 0,
            "reasoning_tokens": 0,
            "completion_tokens": len(tokens),
            "cached_tokens": 0,
        }
        if output.reason == "stop":
            meta["finish_reason"] = {"type": "stop", "matched": tokens[-1]}
        elif output.reason:
            meta["finish_reason"] = {"type": "length", "length": len(tokens)}
        if count is not None:
            tops = [self.most_probable(token, max(count, 1)) for token in tokens]
            rows = [[[logprob, each, None] for each, logprob in top] for top in tops]
            meta["output_token_logprobs"] = [row[0] for row in rows]
            meta["output_token_logprobs_length"] = len(tokens)
            if count:
                meta["output_top_logprobs"] = rows
        return {"text": self.text(tokens), "output_ids": list(tokens), "meta_info": meta}

    def error(self, refusal: Refused) -> Any:
        """As `/generate` writes them."""
        error = {"message": str(refusal), "type": refusal.kind, "code": refusal.status}
        return {"error": error}


class EmbeddingLlamaServer(LlamaServer):
    """llama-server with --embeddings."""

    def __init__(self, state: EngineState) -> None:
        super().__init__(state)
        state.vector_size = _VECTOR_SIZE


WIRES: Final[Mapping[str, Callable[[EngineState], Wire]]] = {
    "llama_server": LlamaServer,
    "llama_server_embeddings": EmbeddingLlamaServer,
    "vllm": Vllm,
    "sglang": SGLang,
}
