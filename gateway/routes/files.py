"""Routes under /v1/files and /v1/uploads."""

import asyncio
import functools
from typing import Annotated

from corral.control.v1 import file_pb2, file_service_pb2, upload_service_pb2
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Caller
from gateway.context import AppContext
from gateway.http.docs import answers, form_body, json_body
from gateway.http.errors import json_response
from gateway.http.file_content import FileContent, parse_range
from gateway.http.multipart import FormField, FormFile, read_form
from gateway.upload_call import UploadCall
from openai_wire.errors import FILE_PARAMS, openai_names
from openai_wire.resources.files import (
    CompleteUploadBody,
    FileFields,
    UploadBody,
    complete_upload_request,
    create_upload_request,
    deleted_file,
    file_header,
    file_list,
    file_object,
    list_files_request,
    part_object,
    upload_object,
)
from svc_kit.errors import CallerCancelled, InvalidField, MissingField, UnknownField
from svc_kit.logs import current_request_id

IDEMPOTENCY_KEY = "idempotency-key"
FILE_FIELD = "file"
SMALL_PAGE = 500
"""Files that are converted in about 2 ms. A larger page would hold up every stream: a thread."""


def files_router(context: AppContext) -> APIRouter:
    """The routes of files."""
    control = context.control
    router = APIRouter(prefix="/v1/files")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.post(
        "",
        summary="Store a file",
        openapi_extra=form_body(FileFields, FILE_FIELD),
        responses=answers("A file."),
    )
    async def create_file(request: Request, caller: known_caller) -> Response:
        """Keeps the bytes of a form's file, streamed, under a purpose."""
        sending = control.upload(control.files.CreateFile, caller)
        with context.live.holding(sending), openai_names(FILE_PARAMS):
            try:
                file = await _send_form(request, sending, context.settings.receive_timeout_s)
            finally:
                sending.stop(CallerCancelled())
        return json_response(file_object(file))

    @router.get("", summary="List the files", responses=answers("A list of files."))
    async def list_files(request: Request, caller: known_caller) -> Response:
        """A page of files: `after`, `limit`, `order` and `purpose` choose it."""
        with openai_names(FILE_PARAMS):
            asked = list_files_request(request.query_params)
            page = await control.call(control.files.ListFiles, asked, caller)
        if len(page.files) > SMALL_PAGE:
            return await asyncio.to_thread(_listed, page)
        return _listed(page)

    @router.get("/{file_id}", summary="Describe a file", responses=answers("A file."))
    async def retrieve_file(file_id: str, caller: known_caller) -> Response:
        """One file."""
        request_file = file_service_pb2.GetFileRequest(file_id=file_id)
        reply = await control.call(control.files.GetFile, request_file, caller)
        return json_response(file_object(reply.file))

    @router.delete("/{file_id}", summary="Delete a file", responses=answers("What is left."))
    async def delete_file(file_id: str, caller: known_caller) -> Response:
        """Deletes a file and its bytes."""
        wanted = file_service_pb2.DeleteFileRequest(file_id=file_id)
        await control.call(control.files.DeleteFile, wanted, caller)
        return json_response(deleted_file(file_id))

    @router.get("/{file_id}/content", summary="Read a file", responses=answers("Its bytes."))
    async def retrieve_content(request: Request, file_id: str, caller: known_caller) -> Response:
        """The bytes of a file, or one range of them."""
        header, wanted = request.headers.get("range"), None
        if header is not None:
            request_file = file_service_pb2.GetFileRequest(file_id=file_id)
            reply = await control.call(control.files.GetFile, request_file, caller)
            file = reply.file
            wanted = parse_range(header, file.size_bytes)
        offset, length = (0, None) if wanted is None else (wanted.first, wanted.length)
        asked = file_service_pb2.DownloadFileRequest(file_id=file_id, offset=offset, length=length)
        start = functools.partial(control.stream, control.files.DownloadFile, asked, caller)
        return context.answered(start, FileContent(wanted), FILE_PARAMS)

    return router


def name_request(request: Request) -> str:
    """The client's name for its request, else ours: gRPC sends a call whose answer was lost again,
    and what it makes must be made once."""
    return request.headers.get(IDEMPOTENCY_KEY) or current_request_id()


def _listed(page: file_service_pb2.ListFilesResponse) -> Response:
    return json_response(file_list(page.files, has_more=bool(page.next_page_token)))


async def _send_form(
    request: Request,
    sending: UploadCall[file_service_pb2.CreateFileRequest, file_service_pb2.CreateFileResponse],
    idle_s: float,
) -> file_pb2.File:
    """Pass the file of a form on while it arrives.

    The header goes first where the form names the purpose first, so that limits hold from the first
    byte on; and last again, because a form may name anything last.
    """
    request_id = name_request(request)
    fields: dict[str, str] = {}
    filename: str | None = None
    async for piece in read_form(request, idle_s):
        if isinstance(piece, FormField):
            fields[piece.name] = piece.text
        elif isinstance(piece, FormFile):
            if piece.name != FILE_FIELD or filename is not None:
                raise InvalidField(field=piece.name, problem="the form has one file, 'file'")
            filename = piece.filename
            if "purpose" in fields:
                await _send_header(sending, file_header(fields, filename, request_id))
        else:
            await sending.write(file_service_pb2.CreateFileRequest(chunk=piece))
    if filename is None:
        raise MissingField(field=FILE_FIELD)
    await _send_header(sending, file_header(fields, filename, request_id))
    return (await sending.finish()).file


async def _send_header(
    sending: UploadCall[file_service_pb2.CreateFileRequest, file_service_pb2.CreateFileResponse],
    header: file_pb2.FileHeader,
) -> None:
    await sending.write(file_service_pb2.CreateFileRequest(header=header))


DATA_FIELD = "data"


def uploads_router(context: AppContext) -> APIRouter:
    """The routes of files that are sent in parts."""
    control = context.control
    router = APIRouter(prefix="/v1/uploads")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.post(
        "",
        summary="Announce a file in parts",
        openapi_extra=json_body(UploadBody),
        responses=answers("An upload."),
    )
    async def create_upload(request: Request, caller: known_caller) -> Response:
        """Begins an upload, which takes parts for an hour."""
        body = await context.read_body(request)
        with openai_names(FILE_PARAMS):
            asked = create_upload_request(body, name_request(request))
            reply = await control.call(control.uploads.CreateUpload, asked, caller)
            upload = reply.upload
        return json_response(upload_object(upload))

    @router.post(
        "/{upload_id}/parts",
        summary="Send a part",
        openapi_extra=form_body(None, DATA_FIELD),
        responses=answers("A part."),
    )
    async def add_part(request: Request, upload_id: str, caller: known_caller) -> Response:
        """Keeps the bytes of a form's file as a part of an upload."""
        sending = control.upload(control.uploads.AddUploadPart, caller)
        with context.live.holding(sending), openai_names(FILE_PARAMS):
            try:
                part = await _send_part(
                    request, upload_id, sending, context.settings.receive_timeout_s
                )
            finally:
                sending.stop(CallerCancelled())
        return json_response(part_object(part))

    @router.post(
        "/{upload_id}/complete",
        summary="Make a file of parts",
        openapi_extra=json_body(CompleteUploadBody),
        responses=answers("The upload with its file."),
    )
    async def complete_upload(request: Request, upload_id: str, caller: known_caller) -> Response:
        """Makes a file of the named parts, in their order."""
        body = await context.read_body(request)
        with openai_names(FILE_PARAMS):
            asked = complete_upload_request(upload_id, body)
            reply = await control.call(
                control.uploads.CompleteUpload, asked, caller, timeout_s=control.transfer_timeout_s
            )
            upload = reply.upload
        return json_response(upload_object(upload))

    @router.post("/{upload_id}/cancel", summary="Give up", responses=answers("The upload."))
    async def cancel_upload(upload_id: str, caller: known_caller) -> Response:
        """Gives an upload up and frees its parts."""
        wanted = upload_service_pb2.CancelUploadRequest(upload_id=upload_id)
        reply = await control.call(control.uploads.CancelUpload, wanted, caller)
        return json_response(upload_object(reply.upload))

    return router


async def _send_part(
    request: Request,
    upload_id: str,
    sending: UploadCall[
        upload_service_pb2.AddUploadPartRequest, upload_service_pb2.AddUploadPartResponse
    ],
    idle_s: float,
) -> upload_service_pb2.UploadPart:
    await sending.write(upload_service_pb2.AddUploadPartRequest(upload_id=upload_id))
    has_file = False
    async for piece in read_form(request, idle_s):
        if isinstance(piece, bytes):
            await sending.write(upload_service_pb2.AddUploadPartRequest(chunk=piece))
        elif isinstance(piece, FormFile) and piece.name == DATA_FIELD and not has_file:
            has_file = True
        else:
            raise UnknownField(field=piece.name)
    if not has_file:
        raise MissingField(field=DATA_FIELD)
    return (await sending.finish()).part
