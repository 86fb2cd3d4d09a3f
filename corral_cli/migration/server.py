"""The client of the control service for exports and imports."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from corral.control.v1.assistant_service_pb2_grpc import AssistantServiceStub
from corral.control.v1.file_service_pb2_grpc import FileServiceStub
from corral.control.v1.message_service_pb2_grpc import MessageServiceStub
from corral.control.v1.thread_service_pb2_grpc import ThreadServiceStub
from corral.control.v1.vector_store_file_service_pb2_grpc import VectorStoreFileServiceStub
from corral.control.v1.vector_store_service_pb2_grpc import VectorStoreServiceStub

from corral_cli.connection import explain_failures
from svc_kit.errors import NotFound
from svc_kit.rpc.client import open_channel, translate_errors

if TYPE_CHECKING:
    from corral.control.v1.assistant_service_pb2_grpc import AssistantServiceAsyncStub
    from corral.control.v1.file_service_pb2_grpc import FileServiceAsyncStub
    from corral.control.v1.message_service_pb2_grpc import MessageServiceAsyncStub
    from corral.control.v1.thread_service_pb2_grpc import ThreadServiceAsyncStub
    from corral.control.v1.vector_store_file_service_pb2_grpc import VectorStoreFileServiceAsyncStub
    from corral.control.v1.vector_store_service_pb2_grpc import VectorStoreServiceAsyncStub


ResultT = TypeVar("ResultT")
CALL_S = 60.0
"""Patience with one call; that of a thread with many messages is the longest."""


class Server(NamedTuple):
    """What the commands talk to."""

    assistants: "AssistantServiceAsyncStub"
    threads: "ThreadServiceAsyncStub"
    messages: "MessageServiceAsyncStub"
    files: "FileServiceAsyncStub"
    stores: "VectorStoreServiceAsyncStub"
    store_files: "VectorStoreFileServiceAsyncStub"


def with_server(
    control: str, api_key: str | None, work: Callable[[Server], Awaitable[ResultT]]
) -> ResultT:
    """Work with the server at `control`. Raises click.ClickException."""

    async def connected() -> ResultT:
        async with open_channel(control, token=api_key) as channel:
            with explain_failures(control):
                return await work(
                    Server(
                        AssistantServiceStub(channel),
                        ThreadServiceStub(channel),
                        MessageServiceStub(channel),
                        FileServiceStub(channel),
                        VectorStoreServiceStub(channel),
                        VectorStoreFileServiceStub(channel),
                    )
                )

    return asyncio.run(connected())


async def every(
    method: Callable[..., Awaitable[Any]], request: Any, field: str
) -> AsyncIterator[Any]:
    """The objects of a list, page after page; `field` is where a page has them."""
    while True:
        page = await method(request, timeout=CALL_S)
        for each in getattr(page, field):
            yield each
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


async def created_once(
    method: Callable[..., Awaitable[Any]], request: Any, old: str, missing: type[NotFound]
) -> Any:
    """The answer of a call that makes what an object of the export becomes; `missing` is what it
    raises where an object that it has made is not there any more."""

    async def make(request_id: str) -> Any:
        request.request_id = request_id
        return await method(request, timeout=CALL_S)

    return await named_once(make, old, request, missing)


async def named_once(
    make: Callable[[str], Awaitable[ResultT]], old: str, about: Any, missing: type[NotFound]
) -> ResultT:
    """As `created_once`, for calls of another form: `make` is given the name of the request, which
    says what `about` does."""
    name = old.encode() + about.SerializeToString(deterministic=True)
    num_deleted = 0
    while True:
        digest = hashlib.sha256(b"%d %b" % (num_deleted, name)).hexdigest()
        try:
            with translate_errors():
                return await make(f"import {digest}")
        except missing:
            # A request of this name made it not long ago, and it has been deleted since.
            num_deleted += 1
