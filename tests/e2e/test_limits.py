"""Limits of bodies, messages and conversations, which are checked before the content."""

from collections.abc import AsyncIterator

import grpc
import httpx
import pytest

from tests.e2e.conftest import BODY_LIMIT, MESSAGE_LIMIT
from tests.support.plain_http import CHAT, JSON, error_of
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
