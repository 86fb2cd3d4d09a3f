"""The routes under /v1/uploads."""

from typing import Annotated

from corral.control.v1 import upload_service_pb2
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Caller
from gateway.control import PartSending
from gateway.docs import answers, form_body, json_body
from gateway.errors import json_response
from gateway.multipart import FormFile, read_form
from gateway.parts import Parts
from gateway.routes.files import name_request
from openai_wire.errors import FILE_PARAMS, openai_names
from openai_wire.files import part_object, upload_object
from openai_wire.requests import (
    CompleteUploadBody,
    UploadBody,
    complete_upload_request,
    create_upload_request,
)
from svc_kit.errors import CallerCancelled, MissingField, UnknownField

DATA_FIELD = "data"


def uploads_router(parts: Parts) -> APIRouter:
    """The routes of files that are sent in parts."""
    router = APIRouter(prefix="/v1/uploads")
    known_caller = Annotated[Caller, Depends(parts.authentication)]

    @router.post(
        "",
        summary="Announce a file in parts",
        openapi_extra=json_body(UploadBody),
        responses=answers("An upload."),
    )
    async def create_upload(request: Request, caller: known_caller) -> Response:
        """Begins an upload, which takes parts for an hour."""
        body = await parts.read_body(request)
        with openai_names(FILE_PARAMS):
            asked = create_upload_request(body, name_request(request))
            upload = await parts.control.create_upload(asked, caller)
        return json_response(upload_object(upload))

    @router.post(
        "/{upload_id}/parts",
        summary="Send a part",
        openapi_extra=form_body(None, DATA_FIELD),
        responses=answers("A part."),
    )
    async def add_part(request: Request, upload_id: str, caller: known_caller) -> Response:
        """Keeps the bytes of a form's file as a part of an upload."""
        sending = parts.control.send_part(caller)
        with parts.live.holding(sending), openai_names(FILE_PARAMS):
            try:
                part = await _send_part(
                    request, upload_id, sending, parts.settings.receive_timeout_s
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
        body = await parts.read_body(request)
        with openai_names(FILE_PARAMS):
            asked = complete_upload_request(upload_id, body)
            upload = await parts.control.complete_upload(asked, caller)
        return json_response(upload_object(upload))

    @router.post("/{upload_id}/cancel", summary="Give up", responses=answers("The upload."))
    async def cancel_upload(upload_id: str, caller: known_caller) -> Response:
        """Gives an upload up and frees its parts."""
        return json_response(upload_object(await parts.control.cancel_upload(upload_id, caller)))

    return router


async def _send_part(
    request: Request, upload_id: str, sending: PartSending, idle_s: float
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
