"""Azure's paths, api-key and api-version, and Groq's paths."""

import json
from hashlib import sha256
from typing import Any

import openai
import pytest
from httpx import AsyncClient
from pydantic import SecretStr
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from svc_kit.settings.groups import KeySettings
from tests.support.fake_inference import FakeInference
from tests.support.fake_responses import FakeResponses, run_response_service
from tests.support.loopback_gateway import run_gateway

KEY = "sk-corral-test"
KEYS = (KeySettings(name="k", sha256=SecretStr(sha256(KEY.encode()).hexdigest())),)
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
VERSION = "2024-10-21"


@pytest.mark.parametrize("deployment", [None, "org/other:1b"])
async def test_azures_client_calls_the_model_of_its_deployment(deployment: str | None) -> None:
    """With its key in `api-key`. A client that is made for a deployment sends another model."""
    fake = FakeInference()
    async with (
        run_gateway(fake, keys=KEYS, inference_keys=KEYS) as gateway,
        openai.AsyncAzureOpenAI(
            azure_endpoint=gateway.url,
            azure_deployment=deployment,
            api_key=KEY,
            api_version=VERSION,
            max_retries=0,
        ) as client,
    ):
        model = "other" if deployment else "org/other:1b"
        raw = await client.chat.completions.with_raw_response.create(model=model, **CHAT)
        vectors = await client.embeddings.create(model=model, input=["a"])
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="wrong").chat.completions.create(model=model, **CHAT)

    assert {request.model for request in fake.calls.requests} == {"org/other:1b"}
    assert raw.headers.get("x-corral-ignored") == ("model" if deployment else None)
    assert raw.parse().choices[0].message.content
    assert len(vectors.data) == 1


@pytest.mark.parametrize("path", ["/openai/v1/chat/completions", "/openai/chat/completions"])
async def test_paths_without_a_deployment_take_the_model_of_the_body(
    client: AsyncClient, fake: FakeInference, path: str
) -> None:
    """As Azure's newer API and Groq's have them."""
    answer = await client.post(path, json=CHAT | {"model": "fake"}, params={"api-version": VERSION})
    models = await client.get("/openai/v1/models")

    assert answer.status_code == 200
    assert fake.calls.requests[0].model == "fake"
    assert [each["id"] for each in models.json()["data"]] == ["fake", "org/other:1b"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/openai/admin/keys"),
        ("GET", "/openai/v1/admin/keys"),
        ("GET", "/openai/%2e%2e/admin/keys"),
        ("POST", "/openai/v1/adapters"),
        ("POST", "/openai/v1/load_lora_adapter"),
        ("POST", "/openai/v1/messages"),
        ("POST", "/openai/api/chat"),
        ("POST", "/openai/openai/v1/chat/completions"),
        ("POST", "/openai/v1/v1/chat/completions"),
        ("POST", "/openai/deployments/fake/responses"),
        ("POST", "/openai/deployments/fake/%2e%2e/%2e%2e/%2e%2e/admin/keys"),
        ("POST", "/openai/deployments//chat/completions"),
        ("POST", "/openai/deployments/fake/chat/completions/more"),
        ("GET", "/openai"),
        ("GET", "/openaiv1/models"),
    ],
)
async def test_other_paths_have_no_second_name(client: AsyncClient, method: str, path: str) -> None:
    """A proxy that hides /admin need not know Azure's paths."""
    answer = await client.request(method, path, json=CHAT)

    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "route_not_found"


async def test_the_deployment_is_the_model_that_errors_name(client: AsyncClient) -> None:
    """Percent-encoded or not; a model in the body that is no text is ignored as others are."""
    answers = [
        await client.post(f"/openai/deployments/{name}/chat/completions", json=CHAT | {"model": 7})
        for name in ("missing", "org%2Fother:1b", "org/other:1b")
    ]

    assert [answer.status_code for answer in answers] == [404, 200, 200]
    assert "missing" in answers[0].json()["error"]["message"]


async def test_a_strict_request_refuses_a_second_model(client: AsyncClient) -> None:
    """It would be ignored."""
    answer = await client.post(
        "/openai/deployments/fake/chat/completions",
        json=CHAT | {"model": "org/other:1b"},
        headers={"x-corral-strict-parameters": "true"},
    )

    assert answer.json()["error"]["param"] == "model"


async def test_sockets_are_served_under_azures_path() -> None:
    """Those of responses; others are not found."""
    async with (
        run_response_service(FakeResponses()) as target,
        run_gateway(control_target=target) as gateway,
    ):
        async with connect(f"ws://{gateway.address}/openai/v1/responses", proxy=None) as socket:
            frame = {"type": "response.create", "model": "m", "input": "hi", "store": False}
            await socket.send(json.dumps(frame))
            event = json.loads(await socket.recv())
        for path in ("/openai/realtime", "/v1/chat/completions", "/", "/admin"):
            with pytest.raises(InvalidStatus) as refused:
                async with connect(f"ws://{gateway.address}{path}", proxy=None):
                    pass
            assert refused.value.response.status_code == 404

    assert event["type"] == "response.created"
    assert event["response"]["status"] == "in_progress"
