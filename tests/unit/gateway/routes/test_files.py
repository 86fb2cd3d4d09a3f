"""A long list of files is converted beside the event loop, which streams depend on."""

import threading
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from corral.control.v1 import file_pb2, file_service_pb2
from fastapi import FastAPI

from gateway.routes import files
from openai_wire.resources.files import file_list


@pytest.mark.parametrize(("count", "beside"), [(files.SMALL_PAGE, False), (10_000, True)])
async def test_a_long_list_does_not_hold_up_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, count: int, beside: bool
) -> None:
    """A short one is not worth a thread."""
    threads: list[threading.Thread] = []
    page = file_service_pb2.ListFilesResponse(files=[file_pb2.File(id="file-x")] * count)

    async def list_files(*_: object) -> file_service_pb2.ListFilesResponse:
        return page

    def noted(*args: Any, **named: Any) -> dict[str, Any]:
        threads.append(threading.current_thread())
        return file_list(*args, **named)

    monkeypatch.setattr("gateway.routes.files.file_list", noted)
    parts: Any = SimpleNamespace(
        authentication=lambda: None, control=SimpleNamespace(list_files=list_files)
    )
    app = FastAPI()
    app.include_router(files.files_router(parts))

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://corral") as client:
        answer = await client.get("/v1/files")

    assert len(answer.json()["data"]) == count
    assert [thread is not threading.current_thread() for thread in threads] == [beside]
