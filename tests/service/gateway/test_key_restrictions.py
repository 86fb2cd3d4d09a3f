"""Keys for some models, networks and scopes, over HTTP."""

from pathlib import Path
from typing import Any

import pytest

from corral_cli.up.children import ensure_token
from tests.service.gateway.test_keys import BEARER, CHAT, make_key
from tests.support.fake_inference import FakeInference
from tests.support.loopback_gateway import run_gateway

ONE_MODEL: dict[str, Any] = {"scopes": ["generate"], "models": ["fake"]}


@pytest.mark.parametrize("has_token", [True, False], ids=["as itself", "with the key"])
async def test_a_key_for_one_model_is_refused_others(has_token: bool, tmp_path: Path) -> None:
    """With OpenAI's code, whether the gateway calls as itself or with the caller's key."""
    token_file = tmp_path / "token"
    ensure_token(token_file)
    key, fake = make_key(**ONE_MODEL), FakeInference()
    settings: dict[str, Any] = {"service_token_file": token_file} if has_token else {}
    async with (
        run_gateway(fake, keys=[key], inference_keys=(key,), **settings) as gateway,
        gateway.client(headers=BEARER) as client,
    ):
        served = await client.post("/v1/chat/completions", json=CHAT)
        other = await client.post("/v1/chat/completions", json=CHAT | {"model": "org/other:1b"})
        batch = await client.post("/v1/batches", json={})

    assert served.status_code == 200
    assert (other.status_code, other.json()["error"]["code"]) == (403, "model_not_found")
    assert other.json()["error"]["message"] == (
        "The API key does not allow the model 'org/other:1b'. Use one of: fake"
    )
    assert (batch.status_code, batch.json()["error"]["code"]) == (403, "scope_missing")
    assert [request.model for request in fake.calls.requests] == ["fake"]


async def test_a_key_is_refused_outside_its_networks() -> None:
    """With OpenAI's code; an IPv4 client of an IPv6 socket counts as IPv4."""
    for networks, status in ((["127.0.0.0/30"], 200), (["192.0.2.0/24", "::1"], 401)):
        key = make_key(networks=networks)
        async with run_gateway(keys=[key]) as gateway, gateway.client(headers=BEARER) as client:
            answer = await client.get("/v1/models")
        assert answer.status_code == status
    error = answer.json()["error"]
    assert error["code"] == "ip_not_authorized"
    assert "127.0.0.1" in error["message"]


@pytest.mark.parametrize(
    ("trusted", "forwarded", "status"),
    [
        ((), "192.0.2.9", 401),
        (("127.0.0.0/8",), "192.0.2.9", 200),
        (("127.0.0.0/8",), "192.0.2.9, 203.0.113.1", 401),
        (("10.0.0.0/8",), "192.0.2.9", 401),
    ],
    ids=["no proxy", "a trusted proxy", "a client that forges the header", "another proxy"],
)
async def test_only_trusted_proxies_name_the_client(
    trusted: tuple[str, ...], forwarded: str, status: int
) -> None:
    """By the last address of X-Forwarded-For that is not a trusted proxy's."""
    key = make_key(networks=["192.0.2.0/24"])
    headers = BEARER | {"x-forwarded-for": forwarded}
    async with (
        run_gateway(keys=[key], trusted_proxies=trusted) as gateway,
        gateway.client(headers=headers) as client,
    ):
        assert (await client.get("/v1/models")).status_code == status


async def test_a_key_that_reads_cannot_generate() -> None:
    """The error names the scope that is missing."""
    key = make_key(scopes=["read"])
    async with run_gateway(keys=[key]) as gateway, gateway.client(headers=BEARER) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT)

    assert answer.status_code == 403
    assert "lacks the scope 'generate'" in answer.json()["error"]["message"]
