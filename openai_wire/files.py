"""Files and uploads as OpenAI's objects."""

from collections.abc import Sequence

from corral.control.v1 import file_pb2, upload_service_pb2

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
        "purpose": _purpose(file.purpose),
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
        "purpose": _purpose(upload.purpose),
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


def _purpose(purpose: file_pb2.FilePurpose) -> str:
    name = file_pb2.FilePurpose.Name(purpose).removeprefix("FILE_PURPOSE_").lower()
    return name.replace("_", "-") if name.startswith(_FINE_TUNE) else name
