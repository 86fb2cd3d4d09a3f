"""HEAD on the routes that have GET."""

import pytest

from tests.support.loopback_gateway import Loopback
from tests.support.raw_http import open_connection


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/docs", "/openapi.json"])
async def test_head_has_the_headers_of_get(path: str, gateway: Loopback) -> None:
    """And no body; the connection can be used again."""
    async with gateway.client() as client:
        got = await client.get(path)
        head = await client.head(path)
        again = await client.get(path)

    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == got.headers["content-length"] == str(len(got.content))
    assert again.content == got.content


async def test_head_of_a_route_without_get_is_refused(gateway: Loopback) -> None:
    async with gateway.client() as client:
        answers = [await client.head("/v1/chat/completions"), await client.head("/v1/nothing")]

    assert [answer.status_code for answer in answers] == [405, 404]


async def test_nothing_follows_the_head(gateway: Loopback) -> None:
    request = b"HEAD /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    async with open_connection(gateway.address) as connection:
        await connection.send(request)
        status, _ = await connection.head()
        rest = await connection.rest()

    assert (status, rest) == (200, b"")
