"""Who may use the gateway, and as whom it calls."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from gateway.app import running
from gateway.config import GatewaySettings
from gateway.fake_inference import FakeInference
from svc_kit.auth.authenticator import ServiceToken
from svc_kit.auth.keys import hash_key
from svc_kit.lifecycle import StartupError
from svc_kit.settings.groups import KeySettings
from tests.support.loopback_gateway import LOOPBACK, a_gateway

KEY = "sk-corral-test"
BEARER = {"authorization": f"Bearer {KEY}"}
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


def a_key(secret: str = KEY, **settings: Any) -> KeySettings:
    """The settings of a key."""
    return KeySettings(name="test", sha256=SecretStr(hash_key(secret)), **settings)


async def test_without_a_key_nothing_under_v1_answers() -> None:
    """401 with OpenAI's text, before the body is looked at; probes and docs stay open."""
    async with a_gateway(keys=[a_key()]) as gateway, gateway.client() as client:
        refused = [
            await client.get("/v1/models"),
            await client.get("/v1/models/fake"),
            await client.post("/v1/chat/completions", content=b"{"),
            await client.post("/v1/completions", content=b"{"),
        ]
        opened = [await client.get(path) for path in ("/health", "/ready", "/docs")]

    assert [answer.status_code for answer in refused] == [401] * 4
    assert refused[0].json()["error"]["message"].startswith("You didn't provide an API key")
    assert refused[0].headers["www-authenticate"] == "Bearer"
    assert [answer.status_code for answer in opened] == [200] * 3


@pytest.mark.parametrize("header", ["Bearer wrong", f"Basic {KEY}", "Bearer", KEY])
async def test_a_wrong_key_is_refused(header: str) -> None:
    """401 with the code clients know."""
    async with a_gateway(keys=[a_key()]) as gateway, gateway.client() as client:
        answer = await client.get("/v1/models", headers={"authorization": header})

    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"


async def test_an_expired_key_is_refused() -> None:
    """A key has a last day."""
    key = a_key(expires_at=datetime(2020, 1, 1, tzinfo=UTC))
    async with a_gateway(keys=[key]) as gateway, gateway.client() as client:
        answer = await client.get("/v1/models", headers=BEARER)

    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "api_key_expired"


async def test_a_key_without_the_scope_is_refused() -> None:
    """A key for operators only does not generate."""
    async with a_gateway(keys=[a_key(scopes={"admin"})]) as gateway, gateway.client() as client:
        answer = await client.get("/v1/models", headers=BEARER)

    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "scope_missing"


async def test_without_a_token_the_callers_key_is_passed_on() -> None:
    """The service checks the same key itself; here it holds it, and then it does not."""
    fake = FakeInference()
    async with (
        a_gateway(fake, keys=[a_key()], inference_keys=(a_key(),)) as gateway,
        gateway.client(headers=BEARER) as client,
    ):
        accepted = await client.post("/v1/chat/completions", json=CHAT)
    async with (
        a_gateway(fake, keys=[a_key()], inference_keys=(a_key("other"),)) as gateway,
        gateway.client(headers=BEARER) as client,
    ):
        refused = await client.post("/v1/chat/completions", json=CHAT)

    assert accepted.status_code == 200
    assert fake.calls.metadata[0]["authorization"] == f"Bearer {KEY}"
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "invalid_api_key"


async def test_with_a_token_the_gateway_calls_on_behalf_of_the_caller(tmp_path: Path) -> None:
    """The service believes project and scopes beside the token, and never sees the key."""
    token_file = tmp_path / "token"
    token = ServiceToken.create(token_file)
    fake = FakeInference()
    key = a_key(project="research", priority="batch")
    async with (
        a_gateway(
            fake, keys=[key], inference_keys=(a_key("other"),), service_token_file=token_file
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


async def test_a_caller_cannot_name_its_own_project(tmp_path: Path) -> None:
    """Identity headers of an HTTP request go nowhere."""
    token_file = tmp_path / "token"
    ServiceToken.create(token_file)
    fake = FakeInference()
    headers = BEARER | {"x-corral-project": "other", "x-corral-scopes": "admin"}
    async with (
        a_gateway(fake, keys=[a_key()], service_token_file=token_file) as gateway,
        gateway.client(headers=headers) as client,
    ):
        await client.post("/v1/chat/completions", json=CHAT)

    (metadata,) = fake.calls.metadata
    assert (metadata["x-corral-project"], metadata["x-corral-scopes"]) == ("default", "inference")


async def test_the_callers_request_id_is_a_label() -> None:
    """Our own id names the request everywhere; the caller's travels as its label."""
    fake = FakeInference()
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    headers = {"x-request-id": "mine", "traceparent": trace}
    async with a_gateway(fake) as gateway, gateway.client(headers=headers) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT)

    own = answer.headers["x-request-id"]
    assert own.startswith("req_")
    assert fake.calls.requests[0].options.label == "mine"
    assert fake.calls.metadata[0]["x-request-id"] == own
    assert fake.calls.metadata[0]["traceparent"] == trace


async def test_headers_that_gRPC_cannot_carry_do_no_harm() -> None:
    """A trace context that is none is dropped, a key that can be none is refused."""
    fake = FakeInference()
    odd = "schlüssel".encode()
    async with a_gateway(fake) as gateway, gateway.client() as client:
        traced = await client.get("/v1/models", headers={b"traceparent": odd, b"x-request-id": odd})
        keyed = await client.get("/v1/models", headers={b"authorization": b"Bearer " + odd})

    assert (traced.status_code, keyed.status_code) == (200, 401)
    assert "traceparent" not in fake.calls.metadata[0]


async def test_an_open_address_needs_a_key() -> None:
    """A gateway that others reach does not start without keys unless it is told to."""
    settings = GatewaySettings(listen="0.0.0.0:0", management_listen=None)

    with pytest.raises(StartupError, match="no API key"):
        async with running(settings):
            pass


async def test_any_key_will_do_where_none_is_needed() -> None:
    """SDKs cannot be used without a key, so a keyless server ignores it."""
    async with a_gateway() as gateway, gateway.client(headers=BEARER) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT)

    assert gateway.address.host == LOOPBACK.partition(":")[0]
    assert answer.status_code == 200
