"""Routes under /v1/responses, with their events as server-sent events and the WebSocket."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from corral.control.v1 import response_service_pb2 as pb
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from dialects.openai.chat.reasoning_fields import chosen_reasoning
from dialects.openai.errors import RESPONSE_PARAMS, openai_names
from dialects.openai.responses.conversations import parse_item_query, parse_starting_after
from dialects.openai.responses.events import (
    ResponseEvent,
    error_frame,
    event_frame,
    event_object,
)
from dialects.openai.responses.objects import (
    Compaction,
    InputTokens,
    McpServer,
    ResponseResource,
    compaction_object,
    response_object,
)
from dialects.openai.responses.output_items import Item
from dialects.openai.responses.requests import (
    CompactBody,
    ResponseBody,
    compact_request,
    new_response,
    parse_includes,
    parse_response,
    report_reasoning,
)
from dialects.openai.shared.objects import DONE
from dialects.openai.shared.pagination import ListQuery, PageQuery, parse_page_fields
from dialects.shared.parameters import parameter_report
from gateway.context import (
    Context,
    Control,
    IdempotencyKey,
    Include,
    Inference,
    JsonObject,
)
from gateway.http.docs import INTEGER, json_body, operation
from gateway.http.errors import error_response, json_response
from gateway.http.large_bodies import convert
from gateway.response_socket import ResponseSocket
from gateway.rpc import InferenceClient
from gateway.rpc_routes import Deletion, Page, RpcRoutes
from svc_kit.errors import DomainError, Draining


class ResponseFrames:
    """Converts the messages of StreamResponse or WatchResponse to SSE frames."""

    def __init__(self, after: int | None = None) -> None:
        """`after` is the number of the event before the stream; None if it is the whole."""
        self._last = -1 if after is None else after

    def frames(
        self, message: pb.StreamResponseResponse | pb.WatchResponseResponse, _call: int = 0
    ) -> Iterable[bytes]:
        """The frame of one event."""
        self._last = message.event.sequence_number
        return (event_frame(event_object(message.event)),)

    def final_frames(self) -> Iterable[bytes]:
        """The last frame."""
        return (DONE,)

    def failure(self, error: DomainError) -> bytes:
        """The last frame of a failed stream."""
        return error_frame(error, self._last)


router = APIRouter(prefix="/v1/responses")
rpc = RpcRoutes(router, RESPONSE_PARAMS)


@router.post(
    "",
    **operation(
        "Create a response", ResponseResource, json_body(ResponseBody), events=ResponseEvent
    ),
)
async def create_response(
    control: Control,
    inference: Inference,
    fields: JsonObject,
    request_id: IdempotencyKey,
    context: Context,
) -> Response:
    """Generate a response. With `stream`, return server-sent events."""
    body = await convert(parse_response, fields)
    proto = await convert(new_response, body)
    await _report_ignored(inference, body)
    # Retries of a response that is not stored cannot be detected.
    request_id = "" if body.store is False else request_id
    if body.stream:
        stream = pb.StreamResponseRequest(new_response=proto, request_id=request_id)
        start = functools.partial(control.stream, stream)
        return context.stream_response(start, ResponseFrames(), RESPONSE_PARAMS)
    unary = pb.CreateResponseRequest(new_response=proto, request_id=request_id)
    create = functools.partial(control.unary, unary)
    return context.reply_response(create, _created_object, RESPONSE_PARAMS)


async def _report_ignored(inference: InferenceClient, body: ResponseBody) -> None:
    """Report settings of reasoning that the model ignores. The response reports other errors."""
    if body.reasoning is None and not chosen_reasoning(body).names:
        return
    try:
        model = await inference.get_model(body.model)
    except DomainError:
        return
    report_reasoning(body, model.thinking)


def _created_object(reply: pb.CreateResponseResponse) -> Mapping[str, Any]:
    written = response_object(reply.response)
    if (report := parameter_report.get()) is not None:
        report.add_unenforced(written.get("ignored_parameters", ()))
    return written


@router.post(
    "/input_tokens", **operation("Count input tokens", InputTokens, json_body(ResponseBody))
)
async def count_input_tokens(
    control: Control, fields: JsonObject, request: Request, context: Context
) -> Response:
    """Count the tokens of the prompt that a response would have."""
    body = await convert(parse_response, fields)
    proto = pb.CountInputTokensRequest(new_response=await convert(new_response, body))
    with openai_names(RESPONSE_PARAMS):
        counting = control.call(proto, pb.CountInputTokensResponse)
        reply = await context.complete(request, counting)
    content = InputTokens(object="response.input_tokens", input_tokens=reply.input_tokens)
    return json_response(content)


@router.post("/compact", **operation("Compact items", Compaction, json_body(CompactBody)))
async def compact(control: Control, body: JsonObject, context: Context) -> Response:
    """Summarize items to fewer tokens, as input of later responses."""
    proto = await convert(compact_request, body)
    start = functools.partial(control.unary, proto)
    return context.reply_response(start, compaction_object, RESPONSE_PARAMS)


@rpc.route("GET", "/mcp_servers", "List the MCP servers", Page(McpServer))
def list_mcp_servers() -> pb.ListMcpServersRequest:
    """List the MCP servers that the operator has configured, by label. Extension of Corral."""
    return pb.ListMcpServersRequest()


@router.get(
    "/{response_id}",
    **operation(
        "Retrieve a response",
        ResponseResource,
        query={"stream": {"type": "boolean"}, "starting_after": INTEGER},
        events=ResponseEvent,
    ),
)
async def retrieve_response(
    control: Control, response_id: str, request: Request, include: Include, context: Context
) -> Response:
    """Retrieve a response. With `stream`, stream its past and future events, those after
    `starting_after`."""
    includes = parse_includes(include)
    if request.query_params.get("stream") == "true":
        after = parse_starting_after(request.query_params)
        proto = pb.WatchResponseRequest(response_id=response_id, after=after)
        start = functools.partial(control.follow, proto)
        return context.stream_response(start, ResponseFrames(after), RESPONSE_PARAMS)
    get = pb.GetResponseRequest(response_id=response_id, include=includes)
    reply = await control.call(get, pb.GetResponseResponse)
    return json_response(response_object(reply.response))


@rpc.route("GET", "", "List the responses", Page(ResponseResource, "ResponseList"), query=PageQuery)
def list_responses(request: Request) -> pb.ListResponsesRequest:
    """List stored responses without their output, paged by `after`, `before`, `limit` and `order`.
    Extension of Corral."""
    return pb.ListResponsesRequest(**parse_page_fields(request.query_params))


@rpc.route("DELETE", "/{response_id}", "Delete a response", Deletion("response"))
def delete_response(response_id: str) -> pb.DeleteResponseRequest:
    """Delete a response and its items, except those that belong to a conversation."""
    return pb.DeleteResponseRequest(response_id=response_id)


@rpc.route("POST", "/{response_id}/cancel", "Cancel a response", ResponseResource)
def cancel_response(response_id: str) -> pb.CancelResponseRequest:
    """Cancel a background response. Its output so far is kept."""
    return pb.CancelResponseRequest(response_id=response_id)


@rpc.route(
    "GET",
    "/{response_id}/input_items",
    "List input items",
    Page(Item),
    query=ListQuery,
)
def list_input_items(
    response_id: str, request: Request, include: Include
) -> pb.ListInputItemsRequest:
    """List the input items of a response, paged by `after`, `limit` and `order`."""
    return pb.ListInputItemsRequest(
        response_id=response_id, **parse_item_query(request.query_params, include)
    )


@router.websocket("")
async def serve_socket(websocket: WebSocket, context: Context) -> None:
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
