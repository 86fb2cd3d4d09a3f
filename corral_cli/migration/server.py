"""The client of the control service for exports and imports."""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc.aio
from google.protobuf.message import Message

from corral_cli.connection import ResultT, list_all
from svc_kit.errors import NotFound
from svc_kit.rpc.client import ReplyT, call_unary, open_method, translate_errors

CALL_TIMEOUT_S: Final = 60.0
"""Timeout of one call; creating a thread with many messages takes longest."""


class Server:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel

    async def call(self, request: Message, reply: type[ReplyT]) -> ReplyT:
        method = open_method(self.channel, type(request))
        return await call_unary(method, request, reply, timeout=CALL_TIMEOUT_S)

    def list_all(self, request: Message, field: str) -> AsyncIterator[Any]:
        """Yield the objects of all pages of a list."""
        return list_all(open_method(self.channel, type(request)), request, field, CALL_TIMEOUT_S)

    async def has(self, request: Message) -> bool:
        """Whether the object that the request gets exists."""
        try:
            with translate_errors():
                await self.call(request, Message)
        except NotFound:
            return False
        return True

    async def create_once(self, request: Any, export_id: str, not_found: type[NotFound]) -> Any:
        """Create the object for `export_id`, unless this request has already created it.

        `not_found` is the error if it created the object before and it was deleted since.
        """

        async def create(request_id: str) -> Message:
            request.request_id = request_id
            return await self.call(request, Message)

        return await call_once(create, export_id, request, not_found)


async def call_once(
    create: Callable[[str], Awaitable[ResultT]],
    export_id: str,
    content: Any,
    not_found: type[NotFound],
) -> ResultT:
    """Like `Server.create_once`, for other calls: `create` receives the request id, which is a
    digest of the message `content`.
    """
    key = export_id.encode() + content.SerializeToString(deterministic=True)
    num_deleted = 0
    while True:
        digest = hashlib.sha256(b"%d %b" % (num_deleted, key)).hexdigest()
        try:
            with translate_errors():
                return await create(f"import {digest}")
        except not_found:
            # The server remembers the request id, but the object has been deleted since.
            num_deleted += 1
