"""Mappings of files and uploads to protos, and readers of streams of requests."""

from collections.abc import AsyncIterator
from typing import Final

from corral.control.v1 import file_pb2
from corral.control.v1 import file_service_pb2 as file_pb
from corral.control.v1 import upload_service_pb2 as upload_pb

from control_svc.files.model import (
    File,
    FilePurpose,
    NewFile,
    NewUpload,
    Upload,
    UploadPart,
    UploadWithFile,
)
from svc_kit.errors import InvalidField, MissingField
from svc_kit.rpc.message_mapper import EnumMapper, MessageMapper

PURPOSES: Final = EnumMapper[FilePurpose](FilePurpose, file_pb2.FilePurpose)
NEW_FILE: Final = MessageMapper(NewFile, file_pb2.FileHeader)
NEW_UPLOAD: Final = MessageMapper(NewUpload, upload_pb.CreateUploadRequest)
FILE: Final = MessageMapper(File, file_pb2.File, only_domain=["blob_key"])
UPLOAD: Final = MessageMapper(
    UploadWithFile,
    upload_pb.Upload,
    flat={
        "upload": MessageMapper(
            Upload,
            upload_pb.Upload,
            only_domain=["ttl", "file_id", "completion"],
            is_part=True,
        )
    },
    uses=[FILE],
)
PART: Final = MessageMapper(UploadPart, upload_pb.UploadPart, only_domain=["blob_key"])


async def read_pieces(
    requests: AsyncIterator[file_pb.CreateFileRequest],
) -> AsyncIterator[NewFile | bytes]:
    """Yield headers and bytes."""
    async for request in requests:
        if request.HasField("header"):
            yield NEW_FILE.from_message(request.header)
        else:
            yield request.chunk


async def read_upload_id(requests: AsyncIterator[upload_pb.AddUploadPartRequest]) -> str:
    """Return the id in the first request. Raises MissingField."""
    async for first in requests:
        if first.HasField("upload_id"):
            return first.upload_id
        break
    raise MissingField(field="upload_id")


async def read_chunks(
    requests: AsyncIterator[upload_pb.AddUploadPartRequest],
) -> AsyncIterator[bytes]:
    """Yield the bytes of the requests after the first. Raises InvalidField."""
    async for request in requests:
        if request.HasField("upload_id"):
            raise InvalidField(field="upload_id", problem="must be set in the first message only")
        yield request.chunk
