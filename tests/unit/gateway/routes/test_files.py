"""A long list of files is converted beside the event loop, which streams depend on."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from corral.control.v1 import file_pb2
from fastapi import FastAPI

from gateway.routes import files


class NotedFiles(list[file_pb2.File]):
    """Files that note the threads which read them."""

    def __init__(self, count: int) -> None:
        super().__init__([file_pb2.File(id="file-x")] * count)
        self.threads: set[threading.Thread] = set()

    def __iter__(self) -> Iterator[file_pb2.File]:
        self.threads.add(threading.current_thread())
        return super().__iter__()


@pytest.mark.parametrize(("count", "beside"), [(files.SMALL_PAGE, False), (10_000, True)])
async def test_a_long_list_does_not_hold_up_the_event_loop(count: int, beside: bool) -> None:
    """A short one is not worth a thread."""
    page = SimpleNamespace(files=NotedFiles(count), next_page_token="")

    async def call(*_: object) -> SimpleNamespace:
        return page

    context: Any = SimpleNamespace(
        authentication=lambda: None,
        control=SimpleNamespace(call=call, files=SimpleNamespace(ListFiles=None)),
    )
    app = FastAPI()
    app.include_router(files.files_router(context))

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://corral") as client:
        answer = await client.get("/v1/files")

    assert len(answer.json()["data"]) == count
    assert [thread is not threading.current_thread() for thread in page.files.threads] == [beside]
