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
from gateway.response_socket import ResponseSocket, identified
from gateway.routes.conversations import requested_includes
from gateway.routes.files import name_request
from gateway.sse import EventStream
from openai_wire.errors import RESPONSE_PARAMS, openai_names, with_openai_names
from openai_wire.responses.conversations import item_list, item_page, starting_after
from openai_wire.responses.events import DONE, error_event, event_frame, event_object
from openai_wire.responses.objects import compaction_object, response_object
from openai_wire.responses.requests import (
    CompactBody,
    ResponseBody,
    compact_request,
    includes_from,
    new_response,
    parse_response,
)
from svc_kit.errors import DomainError, Draining


class ResponseFrames:
    """Turns the messages of StreamResponse or WatchResponse into frames."""

    def __init__(self) -> None:
        self._next = 0

    def payloads(
        self, message: pb.StreamResponseResponse | pb.WatchResponseResponse, _call: int = 0
    ) -> Iterable[bytes]:
        """The frame of one event."""
        self._next = message.event.sequence_number + 1
        return (event_frame(event_object(message.event)),)

    def closing(self) -> Iterable[bytes]:
        """What ends the stream."""
        return (DONE,)

    def failure(self, error: DomainError) -> bytes:
        """The frame of an error after which nothing comes."""
        return event_frame(error_event(error, self._next))


class ResponseStream(EventStream):
    """Server-sent events that bring their own names and numbers."""

    def __init__(self, frames: ResponseFrames, ping_interval_s: float) -> None:
        super().__init__(frames, RESPONSE_PARAMS, ping_interval_s)
        self._frames = frames

    def _framed(self, payload: bytes) -> bytes:
        return payload

    def _failure(self, error: DomainError) -> bytes:
        return self._frames.failure(with_openai_names(error, RESPONSE_PARAMS))


class WholeResponse:
    """The answer of CreateResponse or CompactResponse as an object."""

    def __init__(self) -> None:
        self._object: dict[str, Any] = {}

    def add(
        self, message: pb.CreateResponseResponse | pb.CompactResponseResponse, _call: int = 0
    ) -> None:
        """Takes the answer."""
        if isinstance(message, pb.CreateResponseResponse):
            self._object = response_object(message.response)
        else:
            self._object = compaction_object(message)

    def as_object(self) -> dict[str, object]:
        """The object."""
        return self._object


def responses_router(context: AppContext) -> APIRouter:
    """The routes that have a model answer."""
    control = context.control
    router = APIRouter(prefix="/v1/responses")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.post(
        "",
        summary="Answer",
        openapi_extra=json_body(ResponseBody),
        responses=answers("A response, or its events.", stream=True),
    )
    async def create_response(request: Request, caller: known_caller) -> Response:
        """The model's answer, whole or, with `stream`, as server-sent events."""
        body = parse_response(await context.read_body(request))
        asked = new_response(body)
        # What is stored nowhere cannot be told from an earlier try.
        request_id = "" if body.store is False else name_request(request)
        if body.stream:
            stream = pb.StreamResponseRequest(new_response=asked, request_id=request_id)
            start = functools.partial(
                control.stream, control.responses.StreamResponse, stream, caller
            )
            return context.answered(start, _stream(context), RESPONSE_PARAMS)
        whole = pb.CreateResponseRequest(new_response=asked, request_id=request_id)
        create = functools.partial(control.unary, control.responses.CreateResponse, whole, caller)
        return context.whole(create, WholeResponse(), RESPONSE_PARAMS)

    @router.post(
        "/input_tokens",
        summary="Count a prompt",
        openapi_extra=json_body(ResponseBody),
        responses=answers("A token count."),
    )
    async def count_input_tokens(request: Request, caller: known_caller) -> Response:
        """How many tokens the prompt of a response would have."""
        asked = new_response(parse_response(await context.read_body(request)))
        with openai_names(RESPONSE_PARAMS):
            wanted = pb.CountInputTokensRequest(new_response=asked)
            reply = await control.call(control.responses.CountInputTokens, wanted, caller)
            count = reply.input_tokens
        return json_response({"object": "response.input_tokens", "input_tokens": count})

    @router.post(
        "/compact",
        summary="Sum up",
        openapi_extra=json_body(CompactBody),
        responses=answers("Items that stand for those given."),
    )
    async def compact(request: Request, caller: known_caller) -> Response:
        """Compacts items to fewer tokens, as input of later responses."""
        asked = compact_request(await context.read_body(request))
        start = functools.partial(control.unary, control.responses.CompactResponse, asked, caller)
        return context.whole(start, WholeResponse(), RESPONSE_PARAMS)

    return router


def stored_responses_router(context: AppContext) -> APIRouter:
    """The routes of responses that are kept."""
    control = context.control
    router = APIRouter(prefix="/v1/responses/{response_id}")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.get(
        "", summary="Describe", responses=answers("A response, or its events.", stream=True)
    )
    async def retrieve_response(
        response_id: str, request: Request, caller: known_caller
    ) -> Response:
        """One response; with `stream`, its events after `starting_after`, those to come too."""
        include = includes_from(requested_includes(request))
        if request.query_params.get("stream") == "true":
            asked = pb.WatchResponseRequest(
                response_id=response_id, after=starting_after(request.query_params)
            )
            start = functools.partial(
                control.stream, control.responses.WatchResponse, asked, caller
            )
            return context.answered(start, _stream(context), RESPONSE_PARAMS)
        wanted = pb.GetResponseRequest(response_id=response_id, include=include)
        reply = await control.call(control.responses.GetResponse, wanted, caller)
        return json_response(response_object(reply.response))

    @router.delete("", summary="Forget", responses=answers("That it is gone."))
    async def delete_response(response_id: str, caller: known_caller) -> Response:
        """Forgets a response, and what of it belongs to no conversation."""
        wanted = pb.DeleteResponseRequest(response_id=response_id)
        await control.call(control.responses.DeleteResponse, wanted, caller)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    @router.post("/cancel", summary="Give up", responses=answers("The response."))
    async def cancel_response(response_id: str, caller: known_caller) -> Response:
        """Gives up a response that runs in the background; what it has written is kept."""
        wanted = pb.CancelResponseRequest(response_id=response_id)
        reply = await control.call(control.responses.CancelResponse, wanted, caller)
        return json_response(response_object(reply.response))

    @router.get("/input_items", summary="List its input", responses=answers("A list of items."))
    async def list_input_items(
        response_id: str, request: Request, caller: known_caller
    ) -> Response:
        """What a response was asked: `after`, `limit`, `order` and `include` choose a page."""
        with openai_names(RESPONSE_PARAMS):
            asked = pb.ListInputItemsRequest(
                response_id=response_id,
                **item_page(request.query_params, requested_includes(request)),
            )
            page = await control.call(control.responses.ListInputItems, asked, caller)
        return json_response(item_list(page.items, has_more=bool(page.next_page_token)))

    return router


def _stream(context: AppContext) -> ResponseStream:
    return ResponseStream(ResponseFrames(), context.settings.ping_interval_s)


def response_socket_router(context: AppContext) -> APIRouter:
    """The route of the WebSocket; what is refused before it opens is answered as over HTTP."""
    router = APIRouter()

    @router.websocket("/v1/responses")
    async def serve_socket(websocket: WebSocket) -> None:
        """Responses in both directions."""
        try:
            if context.live.closed:
                raise Draining
            await identified(websocket, context)
        except DomainError as error:
            await websocket.send_denial_response(error_response(error))
            return
        try:
            await ResponseSocket(websocket, context).run()
        except WebSocketDisconnect:
            return  # the client left while something was written

    return router
