"""Routes under /v1/files and /v1/uploads."""

import functools

from corral.control.v1 import file_pb2, file_service_pb2, upload_service_pb2
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from dialects.openai.errors import FILE_PARAMS, openai_names
from dialects.openai.resources import files
from dialects.openai.shared.composed_shapes import page_shape
from dialects.openai.shared.objects import list_object
from gateway.calls import UploadCall
from gateway.context import Context, Control, IdempotencyKey, JsonObject, idempotency_key
from gateway.http.docs import form_body, json_body, operation
from gateway.http.errors import json_response
from gateway.http.file_content import FileContent, parse_range
from gateway.http.multipart import FILE_FIELD, FormFile, read_file, read_form
from gateway.rpc_routes import Deletion, RpcRoutes
from svc_kit.errors import MissingField, UnknownField
from svc_kit.off_loop import off_loop

DATA_FIELD = "data"


_FileUpload = UploadCall[file_service_pb2.CreateFileRequest, file_service_pb2.CreateFileResponse]
_PartUpload = UploadCall[
    upload_service_pb2.AddUploadPartRequest, upload_service_pb2.AddUploadPartResponse
]


router = APIRouter(prefix="/v1")
rpc = RpcRoutes(router, FILE_PARAMS)


@router.post(
    "/files", **operation("Store a file", files.File, form_body(files.FileFields, FILE_FIELD))
)
async def create_file(control: Control, request: Request, context: Context) -> Response:
    """Store the file of a form. It is streamed to the control service."""
    upload = control.upload(file_service_pb2.CreateFileRequest)
    with context.active_calls.track(upload), openai_names(FILE_PARAMS):
        file = await _send_form(request, upload, context.settings.receive_timeout_s)
    return json_response(files.file_object(file))


@router.get(
    "/files", **operation("List the files", page_shape(files.File), query=files.FileListQuery)
)
async def list_files(control: Control, request: Request) -> Response:
    """List files, paged by `after`, `limit` and `order`, filtered by `purpose`."""
    with openai_names(FILE_PARAMS):
        proto = files.list_files_request(request.query_params)
        page = await control.call(proto, file_service_pb2.ListFilesResponse)
    return await off_loop(len(page.files), _file_list, page)


@rpc.route("GET", "/files/{file_id}", "Retrieve a file", files.File)
def retrieve_file(file_id: str) -> file_service_pb2.GetFileRequest:
    """Retrieve a file's metadata."""
    return file_service_pb2.GetFileRequest(file_id=file_id)


@rpc.route("DELETE", "/files/{file_id}", "Delete a file", Deletion("file"))
def delete_file(file_id: str) -> file_service_pb2.DeleteFileRequest:
    """Delete a file and its content."""
    return file_service_pb2.DeleteFileRequest(file_id=file_id)


@router.get("/files/{file_id}/content", **operation("Download a file", "application/octet-stream"))
async def retrieve_content(
    control: Control, request: Request, file_id: str, context: Context
) -> Response:
    """Return the content of a file, or one range of it."""
    header, byte_range = request.headers.get("range"), None
    if header is not None:
        get_file = file_service_pb2.GetFileRequest(file_id=file_id)
        reply = await control.call(get_file, file_service_pb2.GetFileResponse)
        byte_range = parse_range(header, reply.file.size_bytes)
    proto = file_service_pb2.DownloadFileRequest(file_id=file_id)
    if byte_range is not None:
        proto.offset, proto.length = byte_range.first, byte_range.length
    start = functools.partial(control.stream, proto)
    return context.call_response(start, FileContent(byte_range), FILE_PARAMS)


def _file_list(page: file_service_pb2.ListFilesResponse) -> Response:
    return json_response(list_object(page.files, files.file_object, page.next_page_token))


async def _send_form(request: Request, upload: _FileUpload, idle_timeout_s: float) -> file_pb2.File:
    """Stream the file of a form to the control service.

    The header is sent before the file if the purpose is known by then, so that limits apply from
    the first byte. It is sent again at the end, with the fields that follow the file.
    """
    request_id = await idempotency_key(request)
    fields: dict[str, str] = {}
    filename = ""

    async def send_header(filename: str) -> None:
        header = files.file_header(fields, filename, request_id)
        await upload.write(file_service_pb2.CreateFileRequest(header=header))

    async for piece in read_file(request, idle_timeout_s, fields):
        if isinstance(piece, bytes):
            await upload.write(file_service_pb2.CreateFileRequest(chunk=piece))
            continue
        filename = piece.filename
        if "purpose" in fields:
            await send_header(filename)
    await send_header(filename)
    return (await upload.finish()).file


@rpc.route("POST", "/uploads", "Create an upload", files.Upload, files.UploadBody)
def create_upload(
    body: JsonObject, request_id: IdempotencyKey
) -> upload_service_pb2.CreateUploadRequest:
    """Create an upload, which accepts parts for an hour."""
    return files.create_upload_request(body, request_id)


@rpc.route("POST", "/uploads/{upload_id}/cancel", "Cancel an upload", files.Upload)
def cancel_upload(upload_id: str) -> upload_service_pb2.CancelUploadRequest:
    """Cancel an upload and delete its parts."""
    return upload_service_pb2.CancelUploadRequest(upload_id=upload_id)


@router.post(
    "/uploads/{upload_id}/parts",
    **operation("Add a part", files.UploadPart, form_body(None, DATA_FIELD)),
)
async def add_part(
    control: Control, request: Request, upload_id: str, context: Context
) -> Response:
    """Add the file of a form as a part of an upload."""
    upload = control.upload(upload_service_pb2.AddUploadPartRequest)
    with context.active_calls.track(upload), openai_names(FILE_PARAMS):
        part = await _send_part(request, upload_id, upload, context.settings.receive_timeout_s)
    return json_response(files.part_object(part))


@router.post(
    "/uploads/{upload_id}/complete",
    **operation("Complete an upload", files.Upload, json_body(files.CompleteUploadBody)),
)
async def complete_upload(control: Control, upload_id: str, body: JsonObject) -> Response:
    """Create a file from the given parts, in their order."""
    with openai_names(FILE_PARAMS):
        proto = files.complete_upload_request(upload_id, body)
        reply = await control.call(
            proto,
            upload_service_pb2.CompleteUploadResponse,
            timeout_s=control.transfer_timeout_s,
        )
    return json_response(files.upload_object(reply.upload))


async def _send_part(
    request: Request, upload_id: str, upload: _PartUpload, idle_timeout_s: float
) -> upload_service_pb2.UploadPart:
    await upload.write(upload_service_pb2.AddUploadPartRequest(upload_id=upload_id))
    has_file = False
    async for piece in read_form(request, idle_timeout_s):
        if isinstance(piece, bytes):
            await upload.write(upload_service_pb2.AddUploadPartRequest(chunk=piece))
        elif isinstance(piece, FormFile) and piece.name == DATA_FIELD and not has_file:
            has_file = True
        else:
            raise UnknownField(field=piece.name)
    if not has_file:
        raise MissingField(field=DATA_FIELD)
    return (await upload.finish()).part
