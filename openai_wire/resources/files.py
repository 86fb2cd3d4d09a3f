"""Requests and objects of files and uploads."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from corral.control.v1 import file_pb2, file_service_pb2, listing_pb2, upload_service_pb2
from google.protobuf.duration_pb2 import Duration
from pydantic import Field

from openai_wire.shared.fields import WireModel, number_of, validated, without_neutral

INT64_MAX = 2**63 - 1
Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
AnyPurpose = Literal[Purpose, "assistants_output", "batch_output", "fine-tune-results"]


class ExpiresAfter(WireModel):
    """When a file goes away by itself."""

    anchor: Literal["created_at"] = Field(description="What the time counts from.")
    seconds: Annotated[int, Field(ge=3600, le=2_592_000)] = Field(description="An hour to 30 days.")


class FileFields(WireModel):
    """The fields of the form that creates a file, beside the file."""

    purpose: Purpose = Field(description="What the file is for.")
    expires_after: ExpiresAfter | None = Field(
        None, description="Default: 30 days for a batch, never for others."
    )


class UploadBody(WireModel):
    """The announcement of a file that comes in parts."""

    bytes: Annotated[int, Field(ge=1, le=INT64_MAX)] = Field(description="The length of the file.")
    filename: str = Field(min_length=1, description="The name of the file.")
    mime_type: str = Field(min_length=1, description="Its media type.")
    purpose: Purpose = Field(description="What the file is for.")
    expires_after: ExpiresAfter | None = Field(
        None, description="Counts from the completion. Default: as for a file."
    )


class CompleteUploadBody(WireModel):
    """What a file is made of."""

    part_ids: list[str] = Field(min_length=1, description="The parts in the order of the file.")
    md5: str | None = Field(None, description="The digest that the file must have, in hex.")


class FileListQuery(WireModel):
    """The query of a list of files."""

    purpose: AnyPurpose | None = None
    limit: Annotated[int, Field(ge=1, le=10_000)] | None = None
    order: Literal["asc", "desc"] | None = None
    after: str | None = None


def file_header(form: Mapping[str, str], filename: str, request_id: str) -> file_pb2.FileHeader:
    """The header of a file from the fields of its form.

    Raises DomainErrors with the form's field names.
    """
    fields = validated(FileFields, _nested(form))
    return file_pb2.FileHeader(
        filename=filename,
        purpose=_purpose(fields.purpose),
        ttl=duration_of(fields.expires_after),
        request_id=request_id,
    )


def list_files_request(query: Mapping[str, str]) -> file_service_pb2.ListFilesRequest:
    """The page that a query asks for. Parameters that are not known are ignored."""
    known: dict[str, Any] = {
        name: query[name] for name in FileListQuery.model_fields if query.get(name)
    }
    if "limit" in known:
        known["limit"] = number_of(known["limit"])
    request = validated(FileListQuery, known)
    return file_service_pb2.ListFilesRequest(
        page_size=request.limit or 0,
        after=request.after or "",
        order=listing_pb2.LIST_ORDER_OLDEST_FIRST
        if request.order == "asc"
        else listing_pb2.LIST_ORDER_NEWEST_FIRST,
        purpose=_purpose(request.purpose) if request.purpose else None,
    )


def create_upload_request(
    fields: Mapping[str, Any], request_id: str
) -> upload_service_pb2.CreateUploadRequest:
    """The announcement in a body. Raises DomainErrors with the body's field names."""
    body = validated(UploadBody, without_neutral(fields, {}))
    return upload_service_pb2.CreateUploadRequest(
        filename=body.filename,
        purpose=_purpose(body.purpose),
        size_bytes=body.bytes,
        mime_type=body.mime_type,
        ttl=duration_of(body.expires_after),
        request_id=request_id,
    )


def complete_upload_request(
    upload_id: str, fields: Mapping[str, Any]
) -> upload_service_pb2.CompleteUploadRequest:
    """The completion in a body. Raises DomainErrors with the body's field names."""
    body = validated(CompleteUploadBody, without_neutral(fields, {}))
    return upload_service_pb2.CompleteUploadRequest(
        upload_id=upload_id, part_ids=body.part_ids, md5=body.md5 or ""
    )


def _nested(form: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a form as JSON would write them: `a[b]` is `b` in the object `a`."""
    fields: dict[str, Any] = {}
    for name, text in form.items():
        outer, bracket, inner = name.partition("[")
        if bracket and inner.endswith("]"):
            key = inner.removesuffix("]")
            group = fields.setdefault(outer, {})
            if isinstance(group, dict):
                group[key] = number_of(text) if key == "seconds" else text
        else:
            fields[name] = text
    return fields


def _purpose(purpose: str) -> str:
    """The name of the enum's value."""
    return f"FILE_PURPOSE_{purpose.upper().replace('-', '_')}"


def duration_of(expires_after: ExpiresAfter | None) -> Duration | None:
    """Time to live of a file; None means the service's default."""
    return None if expires_after is None else Duration(seconds=expires_after.seconds)


_FINE_TUNE = "fine_tune"


def file_object(file: file_pb2.File) -> dict[str, object]:
    """A file."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": file.create_time.seconds,
        "expires_at": file.expire_time.seconds if file.HasField("expire_time") else None,
        "filename": file.filename,
        "purpose": _shown_purpose(file.purpose),
        "status": "processed",  # what clients that wait for a file look for
        "status_details": None,
        "sha256": file.sha256,
    }


def deleted_file(file_id: str) -> dict[str, object]:
    """What is left of a file."""
    return {"id": file_id, "object": "file", "deleted": True}


def file_list(files: Sequence[file_pb2.File], *, has_more: bool) -> dict[str, object]:
    """A page of files."""
    return {
        "object": "list",
        "data": [file_object(file) for file in files],
        "first_id": files[0].id if files else None,
        "last_id": files[-1].id if files else None,
        "has_more": has_more,
    }


def upload_object(upload: upload_service_pb2.Upload) -> dict[str, object]:
    """An upload, with its file where it has become one."""
    state = upload_service_pb2.Upload.State.Name(upload.state)
    return {
        "id": upload.id,
        "object": "upload",
        "bytes": upload.size_bytes,
        "created_at": upload.create_time.seconds,
        "expires_at": upload.expire_time.seconds,
        "filename": upload.filename,
        "purpose": _shown_purpose(upload.purpose),
        "status": state.removeprefix("STATE_").lower(),
        "file": file_object(upload.file) if upload.HasField("file") else None,
    }


def part_object(part: upload_service_pb2.UploadPart) -> dict[str, object]:
    """A part of an upload."""
    return {
        "id": part.id,
        "object": "upload.part",
        "created_at": part.create_time.seconds,
        "upload_id": part.upload_id,
    }


def _shown_purpose(purpose: file_pb2.FilePurpose) -> str:
    name = file_pb2.FilePurpose.Name(purpose).removeprefix("FILE_PURPOSE_").lower()
    return name.replace("_", "-") if name.startswith(_FINE_TUNE) else name
