"""Downloads and uploads the files of an export, which are in a folder named by their ids.

Ids cannot point outside the folder.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click
from corral.control.v1 import file_pb2, file_service_pb2

from corral_cli.migration.server import Server, call_once
from svc_kit.errors import FileNotFound
from svc_kit.local_files import atomic_file
from svc_kit.rpc.client import open_method

_PURPOSES = {
    "vision": file_pb2.FILE_PURPOSE_VISION,
    "user_data": file_pb2.FILE_PURPOSE_USER_DATA,
}
"""Purposes that are kept. All others, such as assistants_output, become assistants."""
_CHUNK_BYTES = 256 * 1024
_MAX_NAME_BYTES = 200
"""Below the limit of file systems (255), because temporary files have longer names."""


def file_path(folder: Path, file_id: str) -> Path | None:
    """Return the path for a file's bytes, or None if its id is not a valid file name."""
    is_name = file_id not in ("", ".", "..") and not {"/", "\0"} & set(file_id)
    if not is_name or len(file_id.encode()) > _MAX_NAME_BYTES:
        return None
    return folder / file_id


async def download(server: Server, file: file_pb2.File, folder: Path) -> None:
    """Write a file's bytes to `folder`, unless they exist there: files are immutable.

    Raises click.ClickException if the id is not a valid file name.
    """
    target = file_path(folder, file.id)
    if target is None:
        raise click.ClickException(f"the server has a file whose id is no file name: {file.id!r}")
    if target.exists() and target.stat().st_size == file.size_bytes:
        return
    request = file_service_pb2.DownloadFileRequest(file_id=file.id)
    with atomic_file(target) as output:
        async for response in open_method(server.channel, type(request))(request):
            output.write(response.chunk)


async def upload(server: Server, exported: dict[str, Any], path: Path) -> file_pb2.File:
    """Create a file of an export on the server. `path` has its bytes."""
    header = file_pb2.FileHeader(
        filename=exported.get("filename") or exported["id"],
        purpose=_PURPOSES.get(str(exported.get("purpose")), file_pb2.FILE_PURPOSE_ASSISTANTS),
    )

    async def create(request_id: str) -> file_pb2.File:
        header.request_id = request_id
        method = open_method(server.channel, file_service_pb2.CreateFileRequest)
        created: file_pb2.File = (await method(_requests(header, path))).file
        return created

    return await call_once(create, exported["id"], header, FileNotFound)


async def _requests(header: file_pb2.FileHeader, path: Path) -> AsyncIterator[Any]:
    yield file_service_pb2.CreateFileRequest(header=header)
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK_BYTES):
            yield file_service_pb2.CreateFileRequest(chunk=chunk)
