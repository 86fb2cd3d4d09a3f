"""Long lists of files are converted outside of the event loop."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import httpx
import pytest
from corral.control.v1 import file_pb2
from fastapi import FastAPI

from gateway.context import provide_control
from gateway.routes import files


class RecordingFiles(list[file_pb2.File]):
    """Files that record the threads that iterate over them."""

    def __init__(self, count: int) -> None:
        super().__init__([file_pb2.File(id="file-x")] * count)
        self.threads: set[threading.Thread] = set()

    def __iter__(self) -> Iterator[file_pb2.File]:
        self.threads.add(threading.current_thread())
        return super().__iter__()


@pytest.mark.parametrize(("count", "in_thread"), [(500, False), (10_000, True)])
async def test_a_long_list_is_converted_in_a_thread(count: int, in_thread: bool) -> None:
    """A short one is not."""
    page = SimpleNamespace(files=RecordingFiles(count), next_page_token="")

    async def call(*_: object) -> SimpleNamespace:
        return page

    control = SimpleNamespace(call=call)
    app = FastAPI()
    app.include_router(files.router)
    app.dependency_overrides[provide_control] = lambda: control

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://corral") as client:
        answer = await client.get("/v1/files")

    assert len(answer.json()["data"]) == count
    assert [thread is not threading.current_thread() for thread in page.files.threads] == [
        in_thread
    ]
