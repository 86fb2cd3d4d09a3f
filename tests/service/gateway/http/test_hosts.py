"""Foreign hosts and origins, on the wire."""

import pytest

from tests.support.loopback_gateway import a_gateway


async def test_a_foreign_host_is_refused_on_every_route() -> None:
    """A name that resolves here by trickery opens nothing, not even the documentation."""
    async with a_gateway() as gateway, gateway.client(headers={"host": "evil.example"}) as client:
        answers = [
            await client.get(path) for path in ("/v1/models", "/health", "/docs", "/nothing")
        ]

    assert [answer.status_code for answer in answers] == [403] * 4
    assert answers[0].json()["error"]["code"] == "host_not_allowed"
    assert answers[0].headers["x-request-id"].startswith("req_")


async def test_a_foreign_origin_is_refused() -> None:
    """A page of another site cannot use this server through its visitor's browser."""
    async with a_gateway() as gateway, gateway.client() as client:
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
async def test_an_allowed_origin_may_read_the_answers(origin: str) -> None:
    """Pages on loopback and of the sites allowed get what browsers ask for."""
    async with (
        a_gateway(allowed_origins=["https://chat.example"]) as gateway,
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


async def test_further_names_can_be_allowed() -> None:
    """A server behind a name of its own answers to it."""
    async with a_gateway(allowed_hosts=["llm.example"]) as gateway, gateway.client() as client:
        answer = await client.get("/v1/models", headers={"host": "LLM.example:443"})

    assert answer.status_code == 200
