"""Routes: POST /v1/audio/transcriptions and POST /v1/audio/translations."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from dialects.openai.chat.transcription import (
    AudioFields,
    CollectedTranscription,
    TranscriptEvent,
    Transcription,
    TranscriptionFields,
    TranslationFields,
    check_reads_audio,
    parse_transcription,
    parse_translation,
    transcription_request,
)
from dialects.openai.errors import TRANSCRIPTION_PARAMS
from dialects.shared.media import MAX_FILE_BYTES
from gateway.azure_paths import with_deployment
from gateway.calls import Calls
from gateway.context import Context, Inference
from gateway.http.docs import form_body, operation
from gateway.http.multipart import FILE_FIELD, read_file
from svc_kit.errors import MissingField, TooLong

router = APIRouter(prefix="/v1/audio")


class TextObject:
    """A response of plain text, sent when the call is done."""

    def __init__(self, transcription: CollectedTranscription) -> None:
        self._transcription = transcription

    async def send_all(self, calls: Calls[Any], scope: Scope, receive: Receive, send: Send) -> None:
        """Collect the events and send the text."""
        async for call, message in calls:
            self._transcription.add(message, call)
        await PlainTextResponse(self._transcription.text + "\n")(scope, receive, send)


@router.post(
    "/transcriptions",
    **operation(
        "Transcribe audio",
        (Transcription, "text/plain"),
        form_body(TranscriptionFields, FILE_FIELD),
        events=TranscriptEvent,
    ),
)
async def create_transcription(
    inference: Inference, request: Request, context: Context
) -> Response:
    """Transcribe the file of a form with a model that reads audio."""
    return await _respond(inference, request, context, parse_transcription)


@router.post(
    "/translations",
    **operation(
        "Translate audio to English",
        (Transcription, "text/plain"),
        form_body(TranslationFields, FILE_FIELD),
    ),
)
async def create_translation(inference: Inference, request: Request, context: Context) -> Response:
    """Translate the file of a form to English with a model that reads audio."""
    return await _respond(inference, request, context, parse_translation)


async def _respond(
    inference: Inference,
    request: Request,
    context: Context,
    parse: Callable[[Mapping[str, str]], AudioFields],
) -> Response:
    fields, data = await _read_form(request, context.settings.receive_timeout_s)
    body = parse(with_deployment(request.scope, fields))
    check_reads_audio(await inference.get_model(body.model))
    requests = [transcription_request(body, data)]
    streams = isinstance(body, TranscriptionFields) and bool(body.stream)
    start = functools.partial(inference.generate, requests, streams=streams)
    transcription = CollectedTranscription(body, data)
    if streams:
        return context.stream_response(start, transcription, TRANSCRIPTION_PARAMS)
    if body.response_format == "text":
        return context.call_response(start, TextObject(transcription), TRANSCRIPTION_PARAMS)
    return context.object_response(start, transcription, TRANSCRIPTION_PARAMS)


async def _read_form(request: Request, idle_timeout_s: float) -> tuple[dict[str, str], bytes]:
    """The text fields and the file of a form. Raises InvalidField, MissingField or TooLong."""
    fields: dict[str, str] = {}
    chunks: list[bytes] = []
    size = 0
    async for piece in read_file(request, idle_timeout_s, fields):
        if isinstance(piece, bytes):
            size += len(piece)
            if size > MAX_FILE_BYTES:
                raise TooLong(field=FILE_FIELD, length=size, limit=MAX_FILE_BYTES, unit="bytes")
            chunks.append(piece)
    if not size:
        raise MissingField(field=FILE_FIELD)
    return fields, b"".join(chunks)
