"""Media types, and bodies whose size is not known before they end."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.types import Scope

from gateway.http.json_body import JsonBodies, check_media_type
from gateway.http.large_bodies import LargeBodies, release
from svc_kit.errors import BodyTooSlow, QueueFull, UnsupportedMediaType
from svc_kit.logs import project_var

LIMIT = 1000


async def test_a_body_without_a_size_reserves_memory_while_it_arrives() -> None:
    """That of the largest one, and in the end what it needs."""
    project_var.set("p")
    scope: Scope = {}
    bodies = JsonBodies(LIMIT, 20.0, LargeBodies(2 * LIMIT, 0.01, LIMIT))

    async def pieces() -> AsyncIterator[bytes]:
        yield bytes(200)
        yield bytes(200)
        with pytest.raises(QueueFull):
            await bodies.reserve({}, 1)
        yield bytes(100)

    assert await bodies.collect(scope, pieces(), reserved=300) == bytes(500)
    with pytest.raises(QueueFull):
        await bodies.reserve({}, 501)
    rest: Scope = {}
    await bodies.reserve(rest, 500)
    release(rest)
    release(scope)
    await bodies.reserve({}, LIMIT)


async def test_a_body_that_does_not_end_is_refused() -> None:
    """After the time that a client has."""
    bodies = JsonBodies(LIMIT, 0.01, LargeBodies(2 * LIMIT, 0.01, LIMIT))

    async def pieces() -> AsyncIterator[bytes]:
        yield b""
        await asyncio.Event().wait()

    with pytest.raises(BodyTooSlow):
        await bodies.collect({}, pieces(), reserved=300)


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "APPLICATION/JSON",
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
        "application/problem+json",
        "application/json; version=1",
    ],
)
def test_json_is_accepted(content_type: str) -> None:
    check_media_type(content_type)


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "text/plain",
        "text/json",
        "text/plain+json",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/jsonp",
        "application/json; charset=utf-16",
        "application/json, text/plain",
    ],
)
def test_other_media_types_are_rejected(content_type: str) -> None:
    """The error has the content type."""
    with pytest.raises(UnsupportedMediaType) as caught:
        check_media_type(content_type)

    assert caught.value.media_type == content_type
