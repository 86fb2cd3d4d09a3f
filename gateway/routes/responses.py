"""Routes under /v1/responses, with their events as server-sent events and the WebSocket."""

import functools
from collections.abc import Iterable
from typing import Annotated, Any

from corral.control.v1 import response_service_pb2 as pb
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from gateway.auth import Caller
from gateway.context import AppContext
from gateway.http.docs import answers, json_body
from gateway.http.errors import error_response, json_response
from gateway.response_socket import ResponseSocket
from gateway.routes.conversations import include_params
from gateway.routes.files import idempotency_key
from openai_wire.errors import RESPONSE_PARAMS, openai_names
from openai_wire.responses.conversations import parse_item_query, parse_starting_after
from openai_wire.responses.events import error_event, event_frame, event_object
from openai_wire.responses.objects import compaction_object, response_object
from openai_wire.responses.output_items import item_object
from openai_wire.responses.requests import (
    CompactBody,
    ResponseBody,
    compact_request,
    new_response,
    parse_includes,
    parse_response,
)
from openai_wire.shared.objects import DONE, deleted_object, list_object
from svc_kit.errors import DomainError, Draining


class ResponseFrames:
    """Converts the messages of StreamResponse or WatchResponse to SSE frames."""

    def __init__(self) -> None:
        self._next = 0

    def frames(
        self, message: pb.StreamResponseResponse | pb.WatchResponseResponse, _call: int = 0
    ) -> Iterable[bytes]:
        """The frame of one event."""
        self._next = message.event.sequence_number + 1
        return (event_frame(event_object(message.event)),)

    def final_frames(self) -> Iterable[bytes]:
        """The last frame."""
        return (DONE,)

    def failure(self, error: DomainError) -> bytes:
        """The last frame of a failed stream."""
        return event_frame(error_event(error, self._next))


class ResponseCollector:
    """The reply of CreateResponse or CompactResponse as an object."""

    def __init__(self) -> None:
        self._object: dict[str, Any] = {}

    def add(
        self, message: pb.CreateResponseResponse | pb.CompactResponseResponse, _call: int = 0
    ) -> None:
        """Add the reply."""
        if isinstance(message, pb.CreateResponseResponse):
            self._object = response_object(message.response)
        else:
            self._object = compaction_object(message)

    def as_object(self) -> dict[str, object]:
        """The object."""
        return self._object


def responses_router(context: AppContext) -> APIRouter:
    """The routes that generate."""
    control = context.control
    router = APIRouter(prefix="/v1/responses")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.post(
        "",
        summary="Create a response",
        openapi_extra=json_body(ResponseBody),
        responses=answers("A response, or its events.", stream=True),
    )
    async def create_response(request: Request, caller: known_caller) -> Response:
        """Generate a response. With `stream`, return server-sent events."""
        body = parse_response(await context.read_body(request))
        proto = new_response(body)
        # Retries of a response that is not stored cannot be detected.
        request_id = "" if body.store is False else idempotency_key(request)
        if body.stream:
            stream = pb.StreamResponseRequest(new_response=proto, request_id=request_id)
            start = functools.partial(
                control.stream, control.responses.StreamResponse, stream, caller
            )
            return context.stream_response(start, ResponseFrames(), RESPONSE_PARAMS)
        unary = pb.CreateResponseRequest(new_response=proto, request_id=request_id)
        create = functools.partial(control.unary, control.responses.CreateResponse, unary, caller)
        return context.object_response(create, ResponseCollector(), RESPONSE_PARAMS)

    @router.post(
        "/input_tokens",
        summary="Count input tokens",
        openapi_extra=json_body(ResponseBody),
        responses=answers("A token count."),
    )
    async def count_input_tokens(request: Request, caller: known_caller) -> Response:
        """Count the tokens of the prompt that a response would have."""
        body = parse_response(await context.read_body(request))
        proto = pb.CountInputTokensRequest(new_response=new_response(body))
        with openai_names(RESPONSE_PARAMS):
            reply = await control.call(control.responses.CountInputTokens, proto, caller)
        content = {"object": "response.input_tokens", "input_tokens": reply.input_tokens}
        return json_response(content)

    @router.post(
        "/compact",
        summary="Compact items",
        openapi_extra=json_body(CompactBody),
        responses=answers("A compaction."),
    )
    async def compact(request: Request, caller: known_caller) -> Response:
        """Summarize items to fewer tokens, as input of later responses."""
        proto = compact_request(await context.read_body(request))
        start = functools.partial(control.unary, control.responses.CompactResponse, proto, caller)
        return context.object_response(start, ResponseCollector(), RESPONSE_PARAMS)

    return router


def stored_responses_router(context: AppContext) -> APIRouter:
    """The routes of stored responses."""
    control = context.control
    router = APIRouter(prefix="/v1/responses/{response_id}")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.get(
        "",
        summary="Retrieve a response",
        responses=answers("A response, or its events.", stream=True),
    )
    async def retrieve_response(
        response_id: str, request: Request, caller: known_caller
    ) -> Response:
        """Retrieve a response. With `stream`, stream its past and future events, those after
        `starting_after`."""
        include = parse_includes(include_params(request))
        if request.query_params.get("stream") == "true":
            proto = pb.WatchResponseRequest(
                response_id=response_id, after=parse_starting_after(request.query_params)
            )
            start = functools.partial(
                control.stream, control.responses.WatchResponse, proto, caller
            )
            return context.stream_response(start, ResponseFrames(), RESPONSE_PARAMS)
        get = pb.GetResponseRequest(response_id=response_id, include=include)
        reply = await control.call(control.responses.GetResponse, get, caller)
        return json_response(response_object(reply.response))

    @router.delete("", summary="Delete a response", responses=answers("Deletion status."))
    async def delete_response(response_id: str, caller: known_caller) -> Response:
        """Delete a response and its items, except those that belong to a conversation."""
        proto = pb.DeleteResponseRequest(response_id=response_id)
        await control.call(control.responses.DeleteResponse, proto, caller)
        return json_response(deleted_object(response_id, "response"))

    @router.post("/cancel", summary="Cancel a response", responses=answers("The response."))
    async def cancel_response(response_id: str, caller: known_caller) -> Response:
        """Cancel a background response. Its output so far is kept."""
        proto = pb.CancelResponseRequest(response_id=response_id)
        reply = await control.call(control.responses.CancelResponse, proto, caller)
        return json_response(response_object(reply.response))

    @router.get("/input_items", summary="List input items", responses=answers("A list of items."))
    async def list_input_items(
        response_id: str, request: Request, caller: known_caller
    ) -> Response:
        """List the input items of a response, paged by `after`, `limit` and `order`."""
        with openai_names(RESPONSE_PARAMS):
            proto = pb.ListInputItemsRequest(
                response_id=response_id,
                **parse_item_query(request.query_params, include_params(request)),
            )
            page = await control.call(control.responses.ListInputItems, proto, caller)
        has_more = bool(page.next_page_token)
        return json_response(list_object(page.items, item_object, has_more=has_more))

    return router


def response_socket_router(context: AppContext) -> APIRouter:
    """The route of the WebSocket. A rejected handshake is answered as an HTTP request."""
    router = APIRouter()

    @router.websocket("/v1/responses")
    async def serve_socket(websocket: WebSocket) -> None:
        """Serve responses over a WebSocket."""
        try:
            if context.active_calls.closed:
                raise Draining
            await context.identify_socket(websocket)
        except DomainError as error:
            await websocket.send_denial_response(error_response(error))
            return
        try:
            await ResponseSocket(websocket, context).run()
        except WebSocketDisconnect:
            return  # the client disconnected during a write

    return router
