"""Foreign hosts and origins over HTTP."""

import pytest
from httpx import AsyncClient

from tests.support.loopback_gateway import run_gateway


async def test_a_foreign_host_is_rejected_on_every_route() -> None:
    """Including the documentation."""
    async with run_gateway() as gateway, gateway.client(headers={"host": "evil.example"}) as client:
        answers = [
            await client.get(path) for path in ("/v1/models", "/health", "/docs", "/nothing")
        ]

    assert [answer.status_code for answer in answers] == [403] * 4
    assert answers[0].json()["error"]["code"] == "host_not_allowed"
    assert answers[0].headers["x-request-id"].startswith("req_")


async def test_a_foreign_origin_is_rejected(client: AsyncClient) -> None:
    answer = await client.get("/v1/models", headers={"origin": "https://evil.example"})
    preflight = await client.options(
        "/v1/models",
        headers={
            "origin": "https://evil.example",
            "access-control-request-method": "GET",
        },
    )

    assert answer.status_code == preflight.status_code == 403
    assert answer.json()["error"]["code"] == "origin_not_allowed"
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("origin", ["http://localhost:3000", "https://chat.example"])
async def test_an_allowed_origin_gets_cors_headers(origin: str) -> None:
    """Loopback pages and configured sites."""
    async with (
        run_gateway(allowed_origins=["https://chat.example"]) as gateway,
        gateway.client(headers={"origin": origin}) as client,
    ):
        preflight = await client.options(
            "/v1/chat/completions", headers={"access-control-request-method": "POST"}
        )
        answer = await client.get("/v1/models")
        failure = await client.get("/nothing")

    assert preflight.status_code == 204
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    for each in (preflight, answer, failure):
        assert each.headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize(
    ("headers", "is_refused"),
    [
        ({}, False),
        ({"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1"}, False),
        ({"sec-fetch-site": "same-site", "origin": "http://localhost:3000"}, True),
        ({"sec-fetch-site": "cross-site"}, True),
        ({"origin": "http://localhost:3000"}, True),
    ],
)
async def test_a_page_of_another_origin_administers_only_with_a_key(
    headers: dict[str, str], *, is_refused: bool
) -> None:
    """It generates and lists models without one."""
    async with run_gateway() as gateway, gateway.client(headers=headers) as client:
        administered = await client.get("/admin/load")
        listed = await client.get("/v1/models")

    assert (administered.status_code == 403) is is_refused
    assert listed.status_code == 200


async def test_additional_hosts_can_be_allowed() -> None:
    """In any case and with a port."""
    async with run_gateway(allowed_hosts=["llm.example"]) as gateway, gateway.client() as client:
        answer = await client.get("/v1/models", headers={"host": "LLM.example:443"})

    assert answer.status_code == 200
