"""The client of the control service for exports and imports."""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc.aio
from corral.control.v1.assistant_service_pb2_grpc import AssistantServiceStub
from corral.control.v1.file_service_pb2_grpc import FileServiceStub
from corral.control.v1.message_service_pb2_grpc import MessageServiceStub
from corral.control.v1.thread_service_pb2_grpc import ThreadServiceStub
from corral.control.v1.vector_store_file_service_pb2_grpc import VectorStoreFileServiceStub
from corral.control.v1.vector_store_service_pb2_grpc import VectorStoreServiceStub

from corral_cli.connection import Connection, ResultT, list_all
from svc_kit.errors import NotFound
from svc_kit.rpc.client import translate_errors

CALL_TIMEOUT_S: Final = 60.0
"""Timeout of one call; creating a thread with many messages takes longest."""


class Server:
    """Stubs of a control service."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.assistants = AssistantServiceStub(channel)
        self.threads = ThreadServiceStub(channel)
        self.messages = MessageServiceStub(channel)
        self.files = FileServiceStub(channel)
        self.stores = VectorStoreServiceStub(channel)
        self.store_files = VectorStoreFileServiceStub(channel)


def call_control(control: Connection, call: Callable[[Server], Awaitable[ResultT]]) -> ResultT:
    """Run `call` with stubs of the control service. Raises click.ClickException."""
    return control.run(lambda channel: call(Server(channel)))


def list_objects(
    method: Callable[..., Awaitable[Any]], request: Any, field: str
) -> AsyncIterator[Any]:
    """Like `list_all`, with the timeout of this module."""
    return list_all(method, request, field, CALL_TIMEOUT_S)


async def create_once(
    method: Callable[..., Awaitable[Any]],
    request: Any,
    export_id: str,
    not_found: type[NotFound],
) -> Any:
    """Create the object for `export_id`, unless this request has already created it.

    `not_found` is the error of `method` if it created the object before and it was deleted since.
    """

    async def create(request_id: str) -> Any:
        request.request_id = request_id
        return await method(request, timeout=CALL_TIMEOUT_S)

    return await call_once(create, export_id, request, not_found)


async def call_once(
    create: Callable[[str], Awaitable[ResultT]],
    export_id: str,
    content: Any,
    not_found: type[NotFound],
) -> ResultT:
    """Like `create_once`, for other calls: `create` receives the request id, which is a digest of
    the message `content`.
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
