"""The one meeting of protos and the domain."""

from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from corral.control.v1 import file_pb2, listing_pb2, upload_service_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from control_svc.domain.files import File, FilePurpose, NewFile
from control_svc.domain.listing import DEFAULT_PAGE, PageRequest
from control_svc.domain.uploads import NewUpload, UploadPart
from control_svc.usecases.uploads import UploadWithFile
from svc_kit.errors import InvalidField

_PURPOSE: Final = "FILE_PURPOSE_"
_MOST_SECONDS: Final = 10**9  # three decades; more would leave the range of Python's own type


def purpose_from_pb(value: int) -> FilePurpose | None:
    """None for an unset one. Raises InvalidField for a value that this release does not know."""
    if value == file_pb2.FILE_PURPOSE_UNSPECIFIED:
        return None
    known = file_pb2.FilePurpose.DESCRIPTOR.values_by_number.get(value)
    if known is None:
        raise InvalidField(field="purpose", problem=f"{value} is no purpose")
    return FilePurpose[known.name.removeprefix(_PURPOSE)]


def is_newest_first(order: int) -> bool:
    """Raises InvalidField for an order that this release does not know."""
    if order not in listing_pb2.ListOrder.values():
        raise InvalidField(field="order", problem=f"{order} is no order")
    return order != listing_pb2.LIST_ORDER_OLDEST_FIRST


class _ListRequest(Protocol):
    """What requests of lists have that take every cursor."""

    page_size: int
    page_token: str
    after: str
    before: str
    order: Any


def page_request(request: _ListRequest) -> PageRequest:
    """What a caller asks of a list. Raises InvalidField."""
    return PageRequest(
        request.page_size or DEFAULT_PAGE,
        request.page_token,
        request.after,
        is_newest_first(request.order),
        request.before,
    )


def new_file(header: file_pb2.FileHeader) -> NewFile:
    """What a caller says of a file."""
    return NewFile(
        filename=header.filename,
        purpose=purpose_from_pb(header.purpose),
        ttl=time_span("ttl", header.ttl) if header.HasField("ttl") else None,
        size_bytes=header.size_bytes if header.HasField("size_bytes") else None,
        sha256=header.sha256,
        request_id=header.request_id,
    )


def new_upload(request: upload_service_pb2.CreateUploadRequest) -> NewUpload:
    """What a caller says of a file that comes in parts."""
    return NewUpload(
        filename=request.filename,
        purpose=purpose_from_pb(request.purpose),
        size_bytes=request.size_bytes,
        mime_type=request.mime_type,
        ttl=time_span("ttl", request.ttl) if request.HasField("ttl") else None,
        request_id=request.request_id,
    )


def file_to_pb(file: File) -> file_pb2.File:
    """A file as callers see it."""
    return file_pb2.File(
        id=file.id,
        filename=file.filename,
        purpose=f"{_PURPOSE}{file.purpose.name}",
        size_bytes=file.size_bytes,
        sha256=file.sha256,
        create_time=timestamp(file.created_at),
        expire_time=None if file.expires_at is None else timestamp(file.expires_at),
    )


def upload_to_pb(found: UploadWithFile) -> upload_service_pb2.Upload:
    """An upload as callers see it."""
    upload = found.upload
    return upload_service_pb2.Upload(
        id=upload.id,
        filename=upload.filename,
        purpose=f"{_PURPOSE}{upload.purpose.name}",
        size_bytes=upload.size_bytes,
        mime_type=upload.mime_type,
        state=f"STATE_{upload.state.name}",
        create_time=timestamp(upload.created_at),
        expire_time=timestamp(upload.expires_at),
        file=None if found.file is None else file_to_pb(found.file),
    )


def part_to_pb(part: UploadPart) -> upload_service_pb2.UploadPart:
    """A part as callers see it."""
    return upload_service_pb2.UploadPart(
        id=part.id,
        upload_id=part.upload_id,
        size_bytes=part.size_bytes,
        create_time=timestamp(part.created_at),
    )


def time_span(field: str, duration: Duration) -> timedelta:
    """Raises InvalidField for one that Python cannot hold."""
    if abs(duration.seconds) > _MOST_SECONDS:
        raise InvalidField(field=field, problem="it is longer than anybody lives")
    return timedelta(seconds=duration.seconds, microseconds=duration.nanos // 1000)


def timestamp(time: datetime) -> Timestamp:
    """A time as protos have it."""
    stamp = Timestamp()
    stamp.FromDatetime(time)
    return stamp


def optional_timestamp(time: datetime | None) -> Timestamp | None:
    """A time that may not have come, as protos have it."""
    return None if time is None else timestamp(time)
