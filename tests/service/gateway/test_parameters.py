"""Ignored parameters are named in a header; strict requests refuse them."""

from typing import Any

import httpx
import pytest
from corral.inference.v1 import chat_pb2
from corral.inference.v1.model_pb2 import ThinkingSupport as Support
from httpx import AsyncClient

from dialects.openai.chat.chat_request import ChatCompletionBody
from dialects.openai.chat.completion_request import CompletionBody
from dialects.openai.chat.embeddings import EmbeddingBody, RerankBody
from dialects.shared.body_routes import MARKS
from dialects.shared.fields import WireModel
from dialects.shared.parameters import Ignored, policies
from tests.support.fake_inference import FakeInference, Script
from tests.support.fake_responses import FakeResponses, run_response_service
from tests.support.loopback_gateway import run_gateway

CHAT: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
ROUTES: dict[str, tuple[type[WireModel], dict[str, Any]]] = {
    "/v1/chat/completions": (ChatCompletionBody, CHAT),
    "/v1/completions": (CompletionBody, {"model": "fake", "prompt": "a"}),
    "/v1/embeddings": (EmbeddingBody, {"model": "fake", "input": "a"}),
    "/v1/rerank": (RerankBody, {"model": "fake", "query": "a", "documents": ["b"]}),
}
STRICT = {"x-corral-strict-parameters": "true"}


def error_of(answer: httpx.Response) -> tuple[int, str, str]:
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["code"]


@pytest.mark.parametrize("path", ROUTES)
async def test_every_parameter_of_the_policy_is_named(
    path: str, client: AsyncClient, subtests: pytest.Subtests
) -> None:
    """In the header if it is ignored, in an error if it is refused or the request is strict."""
    model, body = ROUTES[path]
    for name, rule in policies(model).items():
        with subtests.test(name=name):
            if "." in name or "[" in name or name in MARKS:
                continue  # those of nested objects and of other routes have tests of their own
            fields = body | {name: "a value"}
            answer = await client.post(path, json=fields)
            refused = await client.post(path, json=fields, headers=STRICT)

            assert error_of(refused) == (400, name, "unsupported_parameter")
            assert rule.reason in refused.json()["error"]["message"]
            if isinstance(rule, Ignored):
                assert answer.status_code == 200
                assert answer.headers["x-corral-ignored"] == name
            else:
                assert answer.json() == refused.json()


async def test_parameters_of_nested_objects_are_named(client: AsyncClient) -> None:
    """Once, without positions, also on a stream."""
    mark = {"cache_control": {"type": "ephemeral"}}
    part = {"type": "text", "text": "hi", **mark}
    function = {"name": "f", **mark}
    body = {
        "model": "fake",
        "messages": [{"role": "user", "content": [part, part], **mark}],
        "tools": [{"type": "function", "function": function, **mark}],
        "stream": True,
        "stream_options": {"include_obfuscation": True, "include_usage": True},
    }
    answer = await client.post("/v1/chat/completions", json=body)

    assert answer.status_code == 200
    assert answer.text.endswith("data: [DONE]\n\n")
    assert sorted(answer.headers["x-corral-ignored"].split(", ")) == [
        "messages[].cache_control",
        "messages[].content[].cache_control",
        "stream_options.include_obfuscation",
        "tools[].cache_control",
        "tools[].function.cache_control",
    ]


async def test_options_of_a_stream_without_a_stream_are_ignored(client: AsyncClient) -> None:
    """Proxies leave them in the body."""
    body = CHAT | {"stream_options": {"include_usage": True}}
    answer = await client.post("/v1/chat/completions", json=body)

    assert (answer.status_code, answer.headers["x-corral-ignored"]) == (200, "stream_options")


async def test_a_request_without_ignored_parameters_has_no_header(client: AsyncClient) -> None:
    answer = await client.post("/v1/chat/completions", json=CHAT | {"user": None}, headers=STRICT)

    assert answer.status_code == 200
    assert "x-corral-ignored" not in answer.headers


async def test_the_header_overrides_the_setting(fake: FakeInference) -> None:
    """A value that is neither true nor false is an error."""
    body = CHAT | {"user": "u"}
    async with run_gateway(fake, strict_parameters=True) as gateway, gateway.client() as client:
        strict = await client.post("/v1/chat/completions", json=body)
        lenient = await client.post(
            "/v1/chat/completions", json=body, headers={"x-corral-strict-parameters": "false"}
        )
        invalid = await client.post(
            "/v1/chat/completions", json=body, headers={"x-corral-strict-parameters": "yes"}
        )

    assert error_of(strict) == (400, "user", "unsupported_parameter")
    assert (lenient.status_code, lenient.headers["x-corral-ignored"]) == (200, "user")
    assert error_of(invalid) == (400, "x-corral-strict-parameters", "invalid_value")


async def test_tools_of_chats_have_the_fields_of_responses(client: AsyncClient) -> None:
    """Clients of tool search mark tools in both."""
    function = {"name": "f", "defer_loading": True}
    body = CHAT | {"tools": [{"type": "function", "function": function, "defer_loading": True}]}
    answer = await client.post("/v1/chat/completions", json=body)
    wrong = body | {"tools": [{"type": "function", "function": function, "allowed_callers": ["x"]}]}
    refused = await client.post("/v1/chat/completions", json=wrong)

    assert answer.status_code == 200
    assert (
        answer.headers["x-corral-ignored"]
        == "tools[].defer_loading, tools[].function.defer_loading"
    )
    assert error_of(refused) == (400, "tools[0].allowed_callers", "unsupported_parameter")


async def test_members_of_schemas_that_are_not_enforced_have_the_callers_names(
    fake: FakeInference, client: AsyncClient
) -> None:
    """In the words of each API."""
    fake.script = Script(ignored_options=("tools[1].parameters_json.properties.a b",))
    messages = CHAT | {"max_tokens": 1}
    names = [
        (await client.post(path, json=messages)).headers["x-corral-ignored"]
        for path in ("/v1/chat/completions", "/v1/messages")
    ]

    assert names == [
        "tools[].function.parameters.properties.a_b",
        "tools[].input_schema.properties.a_b",
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_options_that_the_model_cannot_honour_are_ignored_ones(
    fake: FakeInference, client: AsyncClient, stream: bool
) -> None:
    """The inference service says which; they have the caller's names."""
    fake.script = Script(ignored_options=("reasoning_effort", "thinking_budget_tokens"))
    thinking = {"think": "low", "thinking": {"type": "enabled", "budget_tokens": 9}}
    body = CHAT | thinking | {"stream": stream}
    answer = await client.post("/v1/chat/completions", json=body)
    strict = await client.post("/v1/chat/completions", json=body, headers=STRICT)

    assert answer.status_code == 200
    assert answer.headers["x-corral-ignored"] == "think, thinking.budget_tokens"
    assert error_of(strict) == (400, "think", "unsupported_parameter")


@pytest.mark.parametrize(
    ("mode", "efforts", "ignored"),
    [
        (Support.MODE_NONE, [], "reasoning.effort, thinking_token_budget, reasoning.summary"),
        (Support.MODE_ALWAYS, [], "reasoning.effort"),
        (Support.MODE_ALWAYS, [chat_pb2.REASONING_EFFORT_LOW], None),
        (Support.MODE_SWITCHABLE, [], None),
    ],
)
async def test_responses_name_what_their_model_ignores(
    fake: FakeInference,
    mode: Support.Mode,
    efforts: list[chat_pb2.ReasoningEffort],
    ignored: str | None,
) -> None:
    fake.models[0].thinking.CopyFrom(Support(mode=mode, efforts=efforts))
    body = {"model": "fake", "input": "hi", "thinking_token_budget": 5}
    asked = body | {"reasoning": {"effort": "low", "summary": "auto"}}
    disabled = {"model": "fake", "input": "hi", "reasoning": {"effort": "none"}}
    async with (
        run_response_service(FakeResponses()) as target,
        run_gateway(fake, control_target=target) as gateway,
        gateway.client() as client,
    ):
        answer = await client.post("/v1/responses", json=asked)
        strict = await client.post("/v1/responses", json=asked, headers=STRICT)
        off = await client.post("/v1/responses", json=disabled)

    assert (answer.status_code, answer.headers.get("x-corral-ignored")) == (200, ignored)
    assert strict.status_code == (200 if ignored is None else 400)
    assert (off.status_code, off.headers.get("x-corral-ignored")) == (200, None)
