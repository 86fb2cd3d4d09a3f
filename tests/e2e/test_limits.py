"""Limits of sizes, hosts, origins and routes, which are checked before the content."""

from collections.abc import AsyncIterator

import grpc
import httpx
import pytest

from tests.e2e.conftest import BODY_LIMIT, MESSAGE_LIMIT
from tests.support.plain_http import CHAT, JSON, chat_body, error_of
from tests.support.rpc import Rpc, expect_refusal, make_chat, user

pytestmark = pytest.mark.e2e

INVALID = grpc.StatusCode.INVALID_ARGUMENT


async def test_a_body_over_the_limit_is_refused(small_http: httpx.AsyncClient) -> None:
    """413, with and without a declared length."""
    body = b'{"pad": "%b"}' % (b"x" * BODY_LIMIT)

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 4096):
            yield body[start : start + 4096]

    for content in (body, chunks()):
        response = await small_http.post(CHAT, content=content, headers=JSON)

        assert response.status_code == 413
        assert error_of(response)["code"] == "request_too_large"
        assert str(BODY_LIMIT) in error_of(response)["message"]


async def test_a_message_over_the_limit_is_refused(small_rpc: Rpc) -> None:
    """With both sizes and error details."""
    error = await expect_refusal(small_rpc, make_chat(user("x" * MESSAGE_LIMIT)))

    assert (error.code, error.reason) == (INVALID, "REQUEST_TOO_LARGE")
    assert error.metadata["limit"] == str(MESSAGE_LIMIT)


async def test_too_many_messages_are_refused(small_rpc: Rpc) -> None:
    """In addition to the limit of bytes."""
    error = await expect_refusal(small_rpc, make_chat(*[user("Hi")] * 101))

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
    """Otherwise web pages could use a keyless server through their visitors' browsers."""
    chat = await http.post(CHAT, json=chat_body(), headers=headers)
    models = await http.get("/v1/models", headers=headers)

    for response in (chat, models):
        assert response.status_code == 403
        code = "host_not_allowed" if "host" in headers else "origin_not_allowed"
        assert error_of(response)["code"] == code
        assert "access-control-allow-origin" not in response.headers


async def test_a_request_without_cors_preflight_is_refused(http: httpx.AsyncClient) -> None:
    """Browsers send text/plain across origins without a preflight request."""
    response = await http.post(
        CHAT, content=b'{"model": "x"}', headers={"content-type": "text/plain"}
    )

    assert (response.status_code, error_of(response)["code"]) == (415, "unsupported_media_type")


async def test_unknown_routes_and_methods_get_the_envelope(http: httpx.AsyncClient) -> None:
    """404 and 405 with OpenAI's error envelope."""
    missing, wrong = await http.get("/v1/nothing"), await http.get(CHAT)

    assert (missing.status_code, error_of(missing)["code"]) == (404, "route_not_found")
    assert (wrong.status_code, error_of(wrong)["code"]) == (405, "method_not_allowed")
