"""No number of a body is an error of the server, in no place of the body of any dialect."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from httpx import AsyncClient

from tests.support.json_numbers import HARD_NUMBERS

USER = {"role": "user", "content": "hi"}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"minimum": 1, "enum": [1], "default": 1, "maxLength": 1}},
}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}
CHAT: dict[str, Any] = {"model": "fake", "messages": [USER]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT | {
        "temperature": 1, "max_tokens": 1, "seed": 1, "n": 1, "top_logprobs": 1, "logprobs": True,
        "logit_bias": {"1": 1}, "tools": [FUNCTION], "user": "u", "metadata": {"a": "b"},
        "chat_template_kwargs": {"a": 1}, "stop": ["x"],
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    },
    "/v1/completions": {"model": "fake", "prompt": [1, 2], "max_tokens": 1, "logprobs": 1},
    "/v1/embeddings": {"model": "fake", "input": [[1, 2]], "dimensions": 1},
    "/v1/messages": {
        "model": "fake", "max_tokens": 1, "temperature": 1, "top_k": 1,
        "tools": [{"name": "f", "input_schema": SCHEMA}],
        "messages": [
            USER,
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": "x"},
            ]},
        ],
    },
    "/api/chat": CHAT | {
        "stream": False, "format": SCHEMA, "keep_alive": 1, "tools": [FUNCTION],
        "options": {"temperature": 1, "num_ctx": 1, "seed": 1},
    },
    "/api/generate": {"model": "fake", "prompt": "x", "options": {"top_p": 1}, "context": [1]},
    "/api/embed": {"model": "fake", "input": ["x"], "dimensions": 1},
    "/completion": {"prompt": [1], "n_predict": 1, "logit_bias": [[1, 1]], "json_schema": SCHEMA},
    "/tokenize": {"content": "x", "add_special": True},
    "/detokenize": {"tokens": [1, 2]},
    "/v1/rerank": {"model": "fake", "query": "x", "documents": ["x"], "top_n": 1},
}  # fmt: skip


def with_mark(value: Any) -> Iterator[Any]:
    """Copies of a value with a mark in the place of each number and each text."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        yield "MARK"
    for key, each in items:
        for changed in with_mark(each):
            copy = value.copy()
            copy[key] = changed
            yield copy


@pytest.mark.parametrize("path", BODIES)
async def test_any_number_is_answered_or_refused(client: AsyncClient, path: str) -> None:
    """With 200 or an error of the caller, also where no number belongs."""
    for body in with_mark(BODIES[path]):
        for number in HARD_NUMBERS:
            raw = json.dumps(body).replace('"MARK"', number)
            answer = await client.post(
                path, content=raw, headers={"content-type": "application/json"}
            )
            assert answer.status_code in (200, 400, 404, 422), (raw[:500], answer.text)
