"""Routes under /v1/messages/batches."""

import functools
from typing import Any

from corral.control.v1 import batch_pb2, batch_service_pb2, file_service_pb2
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dialects.anthropic.errors import AnthropicError, with_anthropic_names
from dialects.anthropic.message_batches import (
    ENDPOINT,
    DeletedMessageBatch,
    MessageBatch,
    MessageBatchBody,
    MessageBatchList,
    batch_object,
    batch_page,
    create_batch_request,
    deleted_batch,
    has_ended,
    input_chunks,
    input_header,
    list_batches_request,
    parse_batch,
    result_files,
)
from dialects.anthropic.objects import PageQuery
from dialects.shared.errors import renamed
from gateway.calls import Calls, CallSequence
from gateway.context import Context, Control, IdempotencyKey, JsonObject
from gateway.http.docs import json_body, operation
from gateway.http.errors import json_response
from gateway.http.large_bodies import convert
from gateway.http.middleware import mark_disconnected
from gateway.rpc import ControlClient
from svc_kit.errors import BatchNotEnded, BatchNotFound, CallerCancelled, FileNotFound

router = APIRouter(prefix="/v1/messages/batches")
documented = functools.partial(operation, error=AnthropicError)


@router.post("", **documented("Create a message batch", MessageBatch, json_body(MessageBatchBody)))
async def create_message_batch(
    control: Control, fields: JsonObject, request_id: IdempotencyKey, context: Context
) -> Response:
    """Create a batch of messages. Its requests are stored as a file and run in the background."""
    body = await convert(parse_batch, fields)
    upload = control.upload(file_service_pb2.CreateFileRequest)
    with renamed(with_anthropic_names), context.active_calls.track(upload):
        header = file_service_pb2.CreateFileRequest(header=input_header(request_id))
        await upload.write(header)
        for chunk in input_chunks(body):
            await upload.write(file_service_pb2.CreateFileRequest(chunk=chunk))
        file = (await upload.finish()).file
        proto = create_batch_request(file.id, request_id)
        reply = await control.call(proto, batch_service_pb2.CreateBatchResponse)
    return json_response(batch_object(reply.batch, len(body.requests)))


@router.get("", **documented("List the message batches", MessageBatchList, query=PageQuery))
async def list_message_batches(control: Control, request: Request) -> Response:
    """List batches of messages, newest first, paged by `after_id`, `before_id` and `limit`."""
    with renamed(with_anthropic_names):
        proto = list_batches_request(request.query_params)
        page = await control.call(proto, batch_service_pb2.ListBatchesResponse)
    return json_response(batch_page(page))


@router.get("/{batch_id}", **documented("Retrieve a message batch", MessageBatch))
async def retrieve_message_batch(control: Control, batch_id: str) -> Response:
    """Retrieve a batch with its current counts."""
    return json_response(batch_object(await _get(control, batch_id)))


@router.post("/{batch_id}/cancel", **documented("Cancel a message batch", MessageBatch))
async def cancel_message_batch(control: Control, batch_id: str) -> Response:
    """Cancel a batch. Results so far are kept."""
    await _get(control, batch_id)
    proto = batch_service_pb2.CancelBatchRequest(batch_id=batch_id)
    reply = await control.call(proto, batch_service_pb2.CancelBatchResponse)
    return json_response(batch_object(reply.batch))


@router.delete("/{batch_id}", **documented("Delete a message batch", DeletedMessageBatch))
async def delete_message_batch(control: Control, batch_id: str) -> Response:
    """Delete a batch that has ended, with its requests and results."""
    batch = await _get(control, batch_id)
    _check_ended(batch)
    for file_id in (batch.input_file_id, batch.output_file_id, batch.error_file_id):
        await _delete_file(control, file_id)
    proto = batch_service_pb2.DeleteBatchRequest(batch_id=batch_id)
    await control.call(proto, batch_service_pb2.DeleteBatchResponse)
    return json_response(deleted_batch(batch_id))


@router.get("/{batch_id}/results", **documented("Read the results", "application/x-jsonl"))
async def read_results(control: Control, batch_id: str, context: Context) -> Response:
    """Read the results of a batch that has ended, in any order."""
    batch = await _get(control, batch_id)
    _check_ended(batch)
    starts = [
        functools.partial(control.stream, file_service_pb2.DownloadFileRequest(file_id=file_id))
        for file_id in result_files(batch)
    ]
    start = functools.partial(CallSequence[Any], starts)
    return context.call_response(start, _JsonLines(), with_anthropic_names)


class _JsonLines:
    """Writes the bytes of downloaded files, one after the other."""

    async def send_all(self, calls: Calls[Any], scope: Scope, receive: Receive, send: Send) -> None:
        """Send the bytes as they arrive. An error after the first byte closes the connection."""
        headers = [(b"content-type", b"application/x-jsonl"), (b"cache-control", b"private")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async for _, message in calls:
                if message.chunk:
                    body = {"type": "http.response.body", "body": message.chunk, "more_body": True}
                    await send(body)
        except CallerCancelled:
            mark_disconnected(scope)
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _get(control: ControlClient, batch_id: str) -> batch_pb2.Batch:
    """A batch of messages. Raises BatchNotFound for others too."""
    proto = batch_service_pb2.GetBatchRequest(batch_id=batch_id)
    batch = (await control.call(proto, batch_service_pb2.GetBatchResponse)).batch
    if batch.endpoint != ENDPOINT:
        raise BatchNotFound(batch=batch_id)
    return batch


def _check_ended(batch: batch_pb2.Batch) -> None:
    if not has_ended(batch):
        state = batch_pb2.Batch.State.Name(batch.state).removeprefix("STATE_").lower()
        raise BatchNotEnded(batch=batch.id, state=state)


async def _delete_file(control: ControlClient, file_id: str) -> None:
    """Delete a file, unless there is none or it was deleted before."""
    if not file_id:
        return
    try:
        proto = file_service_pb2.DeleteFileRequest(file_id=file_id)
        await control.call(proto, file_service_pb2.DeleteFileResponse)
    except FileNotFound:
        pass
