"""Request bodies and objects of files and uploads."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from corral.control.v1 import file_pb2, file_service_pb2, upload_service_pb2
from google.protobuf.duration_pb2 import Duration
from pydantic import Field
from typing_extensions import TypedDict

from dialects.openai.shared.objects import enum_name
from dialects.openai.shared.pagination import ListQuery, page_fields, parse_page_query
from dialects.shared.fields import WireModel, parse_integer, validate
from dialects.shared.wire import From, seconds, writer
from svc_kit.rpc.field_limits import limit

INT64_MAX = 2**63 - 1
Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
AnyPurpose = Literal[Purpose, "assistants_output", "batch_output", "fine-tune-results"]


class ExpiresAfter(WireModel):
    anchor: Literal["created_at"] = Field(description="The start of the time to live.")
    seconds: Annotated[int, limit(file_pb2.FileHeader, "ttl")] = Field(
        description="1 hour to 30 days."
    )


class FileFields(WireModel):
    """Fields of the form that creates a file, without the file."""

    purpose: Purpose = Field(description="The purpose of the file.")
    expires_after: ExpiresAfter | None = Field(
        None, description="Default: 30 days for a batch, never for others."
    )


class UploadBody(WireModel):
    bytes: Annotated[int, Field(ge=1, le=INT64_MAX)] = Field(description="The size of the file.")
    filename: str = Field(min_length=1, description="The name of the file.")
    mime_type: str = Field(min_length=1, description="Its media type.")
    purpose: Purpose = Field(description="The purpose of the file.")
    expires_after: ExpiresAfter | None = Field(
        None, description="Starts when the upload is completed. Default: as for a file."
    )


class CompleteUploadBody(WireModel):
    part_ids: list[str] = Field(min_length=1, description="The ids of the parts, in order.")
    md5: str | None = Field(None, description="The expected MD5 digest of the file, in hex.")


class FileListQuery(ListQuery):
    purpose: AnyPurpose | None = None
    limit: Annotated[int, Field(ge=1, le=10_000)] | None = None


def file_header(form: Mapping[str, str], filename: str, request_id: str) -> file_pb2.FileHeader:
    """The header of a file from the fields of its form.

    Raises DomainErrors with the form's field names.
    """
    fields = validate(FileFields, _nest_fields(form))
    return file_pb2.FileHeader(
        filename=filename,
        purpose=_purpose(fields.purpose),
        ttl=ttl_duration(fields.expires_after),
        request_id=request_id,
    )


def list_files_request(query: Mapping[str, str]) -> file_service_pb2.ListFilesRequest:
    """Convert the query of a list. Raises DomainErrors."""
    page = parse_page_query(FileListQuery, query)
    return file_service_pb2.ListFilesRequest(
        **page_fields(page), purpose=_purpose(page.purpose) if page.purpose else None
    )


def create_upload_request(
    fields: Mapping[str, Any], request_id: str
) -> upload_service_pb2.CreateUploadRequest:
    """Convert the body of a new upload. Raises DomainErrors with the body's field names."""
    body = validate(UploadBody, fields)
    return upload_service_pb2.CreateUploadRequest(
        filename=body.filename,
        purpose=_purpose(body.purpose),
        size_bytes=body.bytes,
        mime_type=body.mime_type,
        ttl=ttl_duration(body.expires_after),
        request_id=request_id,
    )


def complete_upload_request(
    upload_id: str, fields: Mapping[str, Any]
) -> upload_service_pb2.CompleteUploadRequest:
    """Convert the body of a completion. Raises DomainErrors with the body's field names."""
    body = validate(CompleteUploadBody, fields)
    return upload_service_pb2.CompleteUploadRequest(
        upload_id=upload_id, part_ids=body.part_ids, md5=body.md5 or ""
    )


def _nest_fields(form: Mapping[str, str]) -> dict[str, Any]:
    """Convert form fields to nested objects: `a[b]` becomes field `b` of object `a`."""
    fields: dict[str, Any] = {}
    for name, text in form.items():
        outer, bracket, inner = name.partition("[")
        if bracket and inner.endswith("]"):
            key = inner.removesuffix("]")
            group = fields.setdefault(outer, {})
            if isinstance(group, dict):
                group[key] = parse_integer(text) if key == "seconds" else text
        else:
            fields[name] = text
    return fields


def _purpose(purpose: str) -> str:
    """The name of the enum value."""
    return f"FILE_PURPOSE_{purpose.upper().replace('-', '_')}"


def ttl_duration(expires_after: ExpiresAfter | None) -> Duration | None:
    """The time to live of a file; None means the service's default."""
    return None if expires_after is None else Duration(seconds=expires_after.seconds)


def _purpose_name(purpose: file_pb2.FilePurpose) -> str:
    name = enum_name(file_pb2.FilePurpose.Name(purpose), "FILE_PURPOSE_")
    return name.replace("_", "-") if name.startswith("fine_tune") else name


class File(TypedDict):
    """A file. `status` is deprecated, but polled by clients."""

    id: str
    object: Literal["file"]
    bytes: Annotated[int, From("size_bytes")]
    created_at: Annotated[int, seconds("create_time")]
    expires_at: Annotated[int | None, seconds("expire_time")]
    filename: str
    purpose: Annotated[AnyPurpose, From(write=_purpose_name)]
    status: Literal["processed"]
    status_details: Literal[None]
    sha256: str


class Upload(TypedDict):
    """An upload, with its file if it is completed."""

    id: str
    object: Literal["upload"]
    bytes: Annotated[int, From("size_bytes")]
    created_at: Annotated[int, seconds("create_time")]
    expires_at: Annotated[int, seconds("expire_time")]
    filename: str
    purpose: Annotated[AnyPurpose, From(write=_purpose_name)]
    status: Annotated[Literal["pending", "completed", "cancelled", "expired"], From("state")]
    file: File | None


class UploadPart(TypedDict):
    id: str
    object: Literal["upload.part"]
    created_at: Annotated[int, seconds("create_time")]
    upload_id: str


file_object = writer(file_pb2.File, File)
upload_object = writer(upload_service_pb2.Upload, Upload)
part_object = writer(upload_service_pb2.UploadPart, UploadPart)
