"""The memory of stored files that chat requests refer to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest
from corral.control.v1 import file_pb2, file_service_pb2

from dialects.shared.media import FileReference, StoredFile
from gateway.active_calls import ActiveCalls
from gateway.rpc import ControlClient
from gateway.sse import CallResponse
from gateway.stored_files import StoredFileReader
from svc_kit.errors import CallerCancelled, DomainError, UpstreamUnavailable

SIZE = 10


class Download:
    async def open(self) -> None:
        """Do nothing."""

    async def __aiter__(self) -> AsyncIterator[tuple[int, Any]]:
        yield 0, file_service_pb2.DownloadFileResponse(file=file_pb2.File())
        yield 0, file_service_pb2.DownloadFileResponse(chunk=bytes(SIZE))

    def stop(self, error: DomainError) -> None:
        """Do nothing."""


class Control:
    """A control service, which records when files are found and read."""

    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.found = asyncio.Event()

    async def call(self, request: Any, _reply: object) -> object:
        self.events.append(f"find {request.file_id}")
        self.found.set()
        return file_service_pb2.GetFileResponse(file=file_pb2.File(filename="x", size_bytes=SIZE))

    def stream(self, request: Any) -> Download:
        self.events.append(f"read {request.file_id}")
        return Download()


async def test_files_wait_until_others_are_released() -> None:
    """Nothing is read before there is room for it; a file that is used twice is read once."""
    events: list[str] = []
    reader = StoredFileReader(ActiveCalls(), memory_bytes=SIZE + 1)
    second = Control(events)

    async def read_second() -> None:
        async with reader.open(cast(ControlClient, second), [FileReference("b", "2")]):
            pass

    first = cast(ControlClient, Control(events))
    twice = [FileReference("a", "1"), FileReference("b", "1")]
    async with reader.open(first, twice) as files:
        assert files == {"1": StoredFile("x", bytes(SIZE))}
        task = asyncio.create_task(read_second())
        await second.found.wait()
        events.append("release 1")
    await task

    assert events == ["find 1", "read 1", "find 2", "release 1", "read 2"]


class Refused:
    """Calls that the service refuses."""

    first = None

    async def open(self) -> None:
        raise UpstreamUnavailable(service="inference")

    async def __aiter__(self) -> AsyncIterator[tuple[int, Any]]:
        for each in list[tuple[int, Any]]():
            yield each

    def stop(self, error: DomainError) -> None:
        """Do nothing."""


class Accepted(Refused):
    """Calls that end without a message."""

    async def open(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("calls", [Accepted(), Refused()], ids=["accepted", "refused"])
async def test_what_a_response_needs_is_released_at_its_end(calls: Refused) -> None:
    """Not before the calls have ended, whether they succeed or not."""
    events: list[str] = []

    class Writer:
        async def send_all(self, *_: object) -> None:
            events.append("sent")

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(_message: object) -> None:
        raise CallerCancelled

    response = CallResponse(lambda: calls, Writer(), ActiveCalls(), lambda error: error)
    response.resources = AsyncExitStack()
    response.resources.callback(events.append, "released")
    try:
        await response({}, receive, cast(Any, send))
    except UpstreamUnavailable:
        events.append("raised")

    expected = ["sent", "released"] if isinstance(calls, Accepted) else ["released", "raised"]
    assert events == expected
