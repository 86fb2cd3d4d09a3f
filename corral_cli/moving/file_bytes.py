"""The bytes of files, in a folder beside an export: each file under its id."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corral.control.v1 import file_pb2, file_service_pb2

from corral_cli.moving.making import request_id_of
from corral_cli.whole_files import whole_file

if TYPE_CHECKING:  # stubs over an aio channel have names for type checkers only
    from corral.control.v1.file_service_pb2_grpc import FileServiceAsyncStub

_PURPOSES = {
    "vision": file_pb2.FILE_PURPOSE_VISION,
    "user_data": file_pb2.FILE_PURPOSE_USER_DATA,
}
"""Of files that messages name; what was made by an assistant is for assistants here."""
_CHUNK_BYTES = 256 * 1024


async def download(files: "FileServiceAsyncStub", file: file_pb2.File, folder: Path) -> None:
    """Write a file's bytes, unless they are there: what a file says never changes."""
    target = folder / file.id
    if target.exists() and target.stat().st_size == file.size_bytes:
        return
    request = file_service_pb2.DownloadFileRequest(file_id=file.id)
    with whole_file(target) as written:
        async for piece in files.DownloadFile(request):
            written.write(piece.chunk)


async def upload(
    files: "FileServiceAsyncStub", found: dict[str, Any], bytes_there: Path
) -> file_pb2.File:
    """Make a file of an export here."""
    old = found["id"]
    header = file_pb2.FileHeader(
        filename=found.get("filename") or old,
        purpose=_PURPOSES.get(str(found.get("purpose")), file_pb2.FILE_PURPOSE_ASSISTANTS),
        request_id=request_id_of(old),
    )
    return (await files.CreateFile(_pieces(header, bytes_there))).file


async def _pieces(header: file_pb2.FileHeader, file: Path) -> AsyncIterator[Any]:
    yield file_service_pb2.CreateFileRequest(header=header)
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            yield file_service_pb2.CreateFileRequest(chunk=chunk)
