"""Reads stored files that a chat request refers to by id, for the inference service."""

from collections.abc import Iterable

from corral.control.v1 import file_service_pb2

from gateway.active_calls import ActiveCalls
from gateway.rpc import ControlClient
from openai_wire.shared.media import FileReference, MediaBudget, StoredFile
from svc_kit.errors import FileNotFound


async def read_files(
    control: ControlClient, active_calls: ActiveCalls, references: Iterable[FileReference]
) -> dict[str, StoredFile]:
    """Return the referenced files of the caller's project, by id.

    Raises FileNotFound and TooLong with the referring field, and UpstreamUnavailable.
    """
    files: dict[str, StoredFile] = {}
    budget = MediaBudget()
    for field, file_id in references:
        if file_id not in files:
            files[file_id] = await _read_file(control, active_calls, field, file_id, budget)
        else:
            budget.add(field, len(files[file_id].data))
    return files


async def _read_file(
    control: ControlClient,
    active_calls: ActiveCalls,
    field: str,
    file_id: str,
    budget: MediaBudget,
) -> StoredFile:
    request = file_service_pb2.DownloadFileRequest(file_id=file_id)
    call = control.stream(control.files.DownloadFile, request)
    filename, chunks = "", list[bytes]()
    try:
        with active_calls.track(call):
            await call.open()
            async for _, message in call:
                if message.HasField("file"):
                    budget.add(field, message.file.size_bytes)
                    filename = message.file.filename
                else:
                    chunks.append(message.chunk)
    except FileNotFound:
        raise FileNotFound(file=file_id, field=field) from None
    return StoredFile(filename, b"".join(chunks))
