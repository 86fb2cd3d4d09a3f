"""Sizes, hosts, origins and routes: what is refused before anybody looks inside."""

from collections.abc import AsyncIterator

import grpc
import httpx
import pytest

from tests.e2e.conftest import BODY_LIMIT, MESSAGE_LIMIT
from tests.support.plain_http import CHAT, JSON, chat_body, error_of
from tests.support.rpc import Rpc, a_chat, refused, user

pytestmark = pytest.mark.e2e

INVALID = grpc.StatusCode.INVALID_ARGUMENT


async def test_a_body_over_the_limit_is_refused(narrow_http: httpx.AsyncClient) -> None:
    """413, whether its length was declared or is found out while reading."""
    body = b'{"pad": "%b"}' % (b"x" * BODY_LIMIT)

    async def in_pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 4096):
            yield body[start : start + 4096]

    for content in (body, in_pieces()):
        response = await narrow_http.post(CHAT, content=content, headers=JSON)

        assert response.status_code == 413
        assert error_of(response)["code"] == "request_too_large"
        assert str(BODY_LIMIT) in error_of(response)["message"]


async def test_a_message_over_the_limit_is_refused(narrow_rpc: Rpc) -> None:
    """With both sizes and details, not gRPC's bare RESOURCE_EXHAUSTED."""
    error = await refused(narrow_rpc, a_chat(user("x" * MESSAGE_LIMIT)))

    assert (error.code, error.reason) == (INVALID, "REQUEST_TOO_LARGE")
    assert error.metadata["limit"] == str(MESSAGE_LIMIT)


async def test_too_many_messages_are_refused(narrow_rpc: Rpc) -> None:
    """A conversation has a bound beside that of its bytes."""
    error = await refused(narrow_rpc, a_chat(*[user("Hi")] * 101))

    assert (error.reason, error.metadata["limit"]) == ("TOO_LONG", "100")


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "localhost.evil.example:8080"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
    ],
    ids=str,
)
async def test_foreign_hosts_and_origins_are_refused(
    http: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    """Any web page could otherwise use a keyless server on loopback through its visitor."""
    chat = await http.post(CHAT, json=chat_body(), headers=headers)
    models = await http.get("/v1/models", headers=headers)

    for response in (chat, models):
        assert response.status_code == 403
        code = "host_not_allowed" if "host" in headers else "origin_not_allowed"
        assert error_of(response)["code"] == code
        assert "access-control-allow-origin" not in response.headers


async def test_a_form_that_a_page_could_send_unasked_is_refused(http: httpx.AsyncClient) -> None:
    """Browsers send text/plain across sites without asking; JSON they do not."""
    response = await http.post(
        CHAT, content=b'{"model": "x"}', headers={"content-type": "text/plain"}
    )

    assert (response.status_code, error_of(response)["code"]) == (415, "unsupported_media_type")


async def test_unknown_routes_and_methods_get_the_envelope(http: httpx.AsyncClient) -> None:
    """404 and 405 in OpenAI's words too."""
    missing, wrong = await http.get("/v1/nothing"), await http.get(CHAT)

    assert (missing.status_code, error_of(missing)["code"]) == (404, "route_not_found")
    assert (wrong.status_code, error_of(wrong)["code"]) == (405, "method_not_allowed")
