"""Authentication of callers, and credentials of the calls made for them."""

from pathlib import Path
from typing import Any

import pytest
from httpx import AsyncClient
from pydantic import SecretStr

from corral_cli.up.children import ensure_token
from gateway.app import running
from gateway.config import GatewaySettings
from svc_kit.auth.authenticator import ServiceToken
from svc_kit.auth.keys import hash_key
from svc_kit.lifecycle import StartupError
from svc_kit.settings.groups import KeySettings
from tests.support.fake_inference import FakeInference
from tests.support.loopback_gateway import LOOPBACK, run_gateway

KEY = "sk-corral-test"
BEARER = {"authorization": f"Bearer {KEY}"}
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


def make_key(secret: str = KEY, **settings: Any) -> KeySettings:
    return KeySettings(name="test", sha256=SecretStr(hash_key(secret)), **settings)


async def test_requests_without_a_key_are_rejected() -> None:
    """With 401 by every route, before the body is read; probes and docs need no key."""
    async with run_gateway(keys=[make_key()]) as gateway, gateway.client() as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
        refused = [
            await client.request(method, path, content=b"{")
            for path, operations in paths.items()
            for method, operation in operations.items()
            if operation["security"]
        ]
        opened = [await client.get(path) for path in ("/health", "/ready", "/docs")]

    assert {answer.status_code for answer in refused} == {401}
    assert refused[0].json()["error"]["message"].startswith("You didn't provide an API key")
    assert refused[0].headers["www-authenticate"] == "Bearer"
    assert [answer.status_code for answer in opened] == [200] * 3


@pytest.mark.parametrize("header", ["Bearer wrong", f"Basic {KEY}", "Bearer", KEY])
async def test_an_invalid_key_is_rejected(header: str) -> None:
    """With OpenAI's code."""
    async with run_gateway(keys=[make_key()]) as gateway, gateway.client() as client:
        answer = await client.get("/v1/models", headers={"authorization": header})

    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"


async def test_without_a_token_the_callers_key_is_forwarded() -> None:
    """The service verifies it."""
    fake = FakeInference()
    async with (
        run_gateway(fake, keys=[make_key()], inference_keys=(make_key(),)) as gateway,
        gateway.client(headers=BEARER) as client,
    ):
        accepted = await client.post("/v1/chat/completions", json=CHAT)
    async with (
        run_gateway(fake, keys=[make_key()], inference_keys=(make_key("other"),)) as gateway,
        gateway.client(headers=BEARER) as client,
    ):
        refused = await client.post("/v1/chat/completions", json=CHAT)

    assert accepted.status_code == 200
    assert fake.calls.metadata[0]["authorization"] == f"Bearer {KEY}"
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "invalid_api_key"


async def test_with_a_token_the_principal_is_forwarded(tmp_path: Path) -> None:
    """The service does not get the key."""
    token_file = tmp_path / "token"
    ensure_token(token_file)
    token = ServiceToken.read(token_file)
    fake = FakeInference()
    key = make_key(project="research", priority="batch")
    async with (
        run_gateway(
            fake, keys=[key], inference_keys=(make_key("other"),), service_token_file=token_file
        ) as gateway,
        gateway.client(headers=BEARER) as client,
    ):
        answer = await client.post("/v1/chat/completions", json=CHAT)

    (metadata,) = fake.calls.metadata
    assert answer.status_code == 200
    assert metadata["authorization"] == f"Bearer {token.secret}"
    assert metadata["x-corral-project"] == "research"
    assert metadata["x-corral-scopes"] == "inference"
    assert metadata["x-corral-priority"] == "batch"


async def test_identity_headers_of_callers_are_ignored(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    ensure_token(token_file)
    fake = FakeInference()
    headers = BEARER | {"x-corral-project": "other", "x-corral-scopes": "admin"}
    async with (
        run_gateway(fake, keys=[make_key()], service_token_file=token_file) as gateway,
        gateway.client(headers=headers) as client,
    ):
        await client.post("/v1/chat/completions", json=CHAT)

    (metadata,) = fake.calls.metadata
    assert (metadata["x-corral-project"], metadata["x-corral-scopes"]) == ("default", "inference")


async def test_the_callers_request_id_becomes_a_label() -> None:
    """The gateway has its own request ids."""
    fake = FakeInference()
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    headers = {"x-request-id": "mine", "traceparent": trace}
    async with run_gateway(fake) as gateway, gateway.client(headers=headers) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT)

    request_id = answer.headers["x-request-id"]
    assert request_id.startswith("req_")
    assert fake.calls.requests[0].options.label == "mine"
    assert fake.calls.metadata[0]["x-request-id"] == request_id
    assert fake.calls.metadata[0]["traceparent"] == trace


async def test_headers_invalid_in_grpc(fake: FakeInference, client: AsyncClient) -> None:
    """An invalid trace context is dropped, an invalid key is rejected."""
    odd = "schlüssel".encode()
    traced = await client.get("/v1/models", headers={b"traceparent": odd, b"x-request-id": odd})
    keyed = await client.get("/v1/models", headers={b"authorization": b"Bearer " + odd})

    assert (traced.status_code, keyed.status_code) == (200, 401)
    assert "traceparent" not in fake.calls.metadata[0]


async def test_a_public_address_requires_a_key() -> None:
    """The gateway does not start without one."""
    settings = GatewaySettings(listen="0.0.0.0:0", management_listen=None)

    with pytest.raises(StartupError, match="no API key"):
        async with running(settings):
            pass


async def test_a_keyless_gateway_accepts_any_key() -> None:
    """SDKs require one."""
    async with run_gateway() as gateway, gateway.client(headers=BEARER) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT)

    assert gateway.address.host == LOOPBACK.partition(":")[0]
    assert answer.status_code == 200
