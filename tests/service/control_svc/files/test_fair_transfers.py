"""Transfers of several projects at once, on both databases."""

import asyncio
from collections.abc import AsyncIterator

from corral.control.v1 import file_pb2
from corral.control.v1 import file_service_pb2 as file_pb

from control_svc.files.slice import MAX_PROJECT_TRANSFERS
from tests.support.control import USER_DATA, RunningControl

NUM_UPLOADS = 300
CONTENT = bytes(3_000)


async def test_slow_uploads_of_a_project_leave_room_for_another(running: RunningControl) -> None:
    """Many of its senders wait; another project uploads and downloads a file meanwhile."""
    blue, red = running.of_project("blue"), running.of_project("red")
    go_on = asyncio.Event()

    async def send_slowly() -> AsyncIterator[file_pb.CreateFileRequest]:
        header = file_pb2.FileHeader(filename="a.txt", purpose=USER_DATA)
        yield file_pb.CreateFileRequest(header=header)
        await go_on.wait()
        yield file_pb.CreateFileRequest(chunk=CONTENT)

    async with asyncio.TaskGroup() as group:
        for _ in range(NUM_UPLOADS):
            group.create_task(blue.call(blue.files.CreateFile, send_slowly()))
        while running.blobs.num_open < MAX_PROJECT_TRANSFERS:
            running.blobs.started.clear()
            await running.blobs.started.wait()
        file = await red.create(CONTENT)
        assert await red.read(file.id) == CONTENT
        assert running.blobs.num_open == MAX_PROJECT_TRANSFERS
        go_on.set()
