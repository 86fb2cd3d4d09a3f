"""Files of an export, in a folder beside it; ids cannot lead out of the folder."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from corral.control.v1 import file_pb2, file_service_pb2

from corral_cli.migration.server import named_once
from svc_kit.errors import FileNotFound
from svc_kit.local_files import atomic_file

if TYPE_CHECKING:
    from corral.control.v1.file_service_pb2_grpc import FileServiceAsyncStub


_PURPOSES = {
    "vision": file_pb2.FILE_PURPOSE_VISION,
    "user_data": file_pb2.FILE_PURPOSE_USER_DATA,
}
"""Of files that messages name; what was made by an assistant is for assistants here."""
_CHUNK_BYTES = 256 * 1024
_MAX_NAME_BYTES = 200
"""File systems take a little more, and a name is longer while its file is written."""


def bytes_at(folder: Path, file_id: str) -> Path | None:
    """Where a file's bytes are, or would be; None: its id is no name of a file."""
    is_name = file_id not in ("", ".", "..") and not {"/", "\0"} & set(file_id)
    if not is_name or len(file_id.encode()) > _MAX_NAME_BYTES:
        return None
    return folder / file_id


async def download(files: "FileServiceAsyncStub", file: file_pb2.File, folder: Path) -> None:
    """Write a file's bytes to `folder`, unless they are there already: a file's content is
    immutable.

    Raises click.ClickException for an id that cannot be a file name.
    """
    target = bytes_at(folder, file.id)
    if target is None:
        raise click.ClickException(f"the server has a file whose id is no name: {file.id!r}")
    if target.exists() and target.stat().st_size == file.size_bytes:
        return
    request = file_service_pb2.DownloadFileRequest(file_id=file.id)
    with atomic_file(target) as written:
        async for piece in files.DownloadFile(request):
            written.write(piece.chunk)


async def upload(
    files: "FileServiceAsyncStub", found: dict[str, Any], bytes_there: Path
) -> file_pb2.File:
    """Make a file of an export here."""
    header = file_pb2.FileHeader(
        filename=found.get("filename") or found["id"],
        purpose=_PURPOSES.get(str(found.get("purpose")), file_pb2.FILE_PURPOSE_ASSISTANTS),
    )

    async def make(request_id: str) -> file_pb2.File:
        header.request_id = request_id
        return (await files.CreateFile(_pieces(header, bytes_there))).file

    return await named_once(make, found["id"], header, FileNotFound)


async def _pieces(header: file_pb2.FileHeader, file: Path) -> AsyncIterator[Any]:
    yield file_service_pb2.CreateFileRequest(header=header)
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            yield file_service_pb2.CreateFileRequest(chunk=chunk)
