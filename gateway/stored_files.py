"""Reads stored files that chat requests refer to by id, for the inference service."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from corral.control.v1 import file_pb2, file_service_pb2

from dialects.shared.media import FileReference, MediaBudget, StoredFile
from gateway.active_calls import ActiveCalls
from gateway.rpc import ControlClient
from svc_kit.errors import FileNotFound
from svc_kit.fair_semaphore import FairSemaphore
from svc_kit.logs import project_var

_MEMORY_BYTES: Final = 256 * 1024 * 1024
"""Limit of the files of all requests: a short request can refer to large files."""


class StoredFileReader:
    """Reads files of callers, with limits for each request and for the process."""

    def __init__(self, active_calls: ActiveCalls, memory_bytes: int = _MEMORY_BYTES) -> None:
        self._active_calls = active_calls
        self._memory = FairSemaphore(memory_bytes)

    @asynccontextmanager
    async def open(
        self, control: ControlClient, references: Sequence[FileReference]
    ) -> AsyncIterator[dict[str, StoredFile]]:
        """Yield the caller's files by id. Waits for its turn while too many are in memory.

        Raises FileNotFound and TooLong with the referring field, and UpstreamUnavailable.
        """
        budget, files = MediaBudget(), dict[str, file_pb2.File]()
        for field, file_id in references:
            if file_id not in files:
                files[file_id] = await _find(control, field, file_id)
            budget.add(field, files[file_id].size_bytes)
        size = sum(file.size_bytes for file in files.values())
        async with self._memory.reserve(size, project_var.get()):
            fields = {file_id: field for field, file_id in references}
            yield {
                file_id: StoredFile(file.filename, await self._read(control, file_id, fields))
                for file_id, file in files.items()
            }

    async def _read(self, control: ControlClient, file_id: str, fields: dict[str, str]) -> bytes:
        request = file_service_pb2.DownloadFileRequest(file_id=file_id)
        call = control.stream(request)
        try:
            with self._active_calls.track(call):
                await call.open()
                return b"".join([message.chunk async for _, message in call])
        except FileNotFound:
            raise FileNotFound(file=file_id, field=fields[file_id]) from None


async def _find(control: ControlClient, field: str, file_id: str) -> file_pb2.File:
    request = file_service_pb2.GetFileRequest(file_id=file_id)
    try:
        return (await control.call(request, file_service_pb2.GetFileResponse)).file
    except FileNotFound:
        raise FileNotFound(file=file_id, field=field) from None
