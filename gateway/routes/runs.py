"""Routes of runs and their steps, with their events as server-sent events."""

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Annotated

from corral.control.v1 import run_service_pb2 as pb
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from dialects.openai.assistants import run_requests
from dialects.openai.assistants.run_events import DONE, ThreadEvent, error_frame, event_frame
from dialects.openai.assistants.run_objects import Run, RunStep, poll_after_ms, step_object
from dialects.openai.assistants.thread_requests import MetadataBody
from dialects.openai.errors import ASSISTANT_PARAMS, openai_names
from dialects.openai.shared.composed_shapes import page_shape
from dialects.openai.shared.objects import list_object
from dialects.openai.shared.pagination import PageQuery, parse_page_fields
from gateway.calls import StreamCall
from gateway.context import AppContext, Context, Control, IdempotencyKey, Include, JsonObject
from gateway.http.docs import INTEGER, json_body, operation
from gateway.http.errors import json_response
from gateway.http.large_bodies import convert
from gateway.http.rate_limits import set_rate_limits
from gateway.rpc import ControlClient
from gateway.rpc_routes import Page, Resource, RpcRoutes
from svc_kit.errors import DomainError


class RunFrames:
    """Converts the messages of WatchRun to SSE frames."""

    def __init__(self, include: list[str]) -> None:
        """`include` may name the content of search results. Raises UnsupportedValue."""
        self._with_results = run_requests.wants_search_results(include)

    def frames(self, message: pb.WatchRunResponse, _call: int = 0) -> Iterable[bytes]:
        """The frame of one event, if OpenAI has such an event."""
        frame = event_frame(message, with_results=self._with_results)
        return () if frame is None else (frame,)

    def final_frames(self) -> Iterable[bytes]:
        """The last frame."""
        return (DONE,)

    def failure(self, error: DomainError) -> bytes:
        """The last frame of a failed stream."""
        return error_frame(error)


_EVENT_PARAMS = {**ASSISTANT_PARAMS, "after": "starting_after"}
_Reply = pb.CreateRunResponse | pb.CreateThreadAndRunResponse | pb.SubmitToolOutputsResponse
_StartRun = Callable[[], Awaitable[_Reply]]
_WatchRun = Callable[[pb.WatchRunRequest], StreamCall[pb.WatchRunResponse]]
_ONE_RUN = "/{thread_id}/runs/{run_id}"


class StartedRun:
    """The `Calls` that create or resume a run and then watch it. A client that disconnects ends the
    stream but not the run.
    """

    first: _Reply | None = None
    """The created run, with the state of limits."""

    def __init__(self, start_run: _StartRun, watch: _WatchRun) -> None:
        self._start_run = start_run
        self._watch = watch
        self._opening: asyncio.Future[_Reply] | None = None
        self._call: StreamCall[pb.WatchRunResponse] | None = None
        self._stopped: DomainError | None = None

    async def open(self) -> None:
        """Start the run and wait for its first event."""
        self._opening = asyncio.ensure_future(self._start_run())
        try:
            self.first = reply = await self._opening
        except asyncio.CancelledError:
            if self._stopped is None:
                raise
        if self._stopped is not None:
            raise self._stopped
        proto = pb.WatchRunRequest(thread_id=reply.run.thread_id, run_id=reply.run.id)
        if isinstance(reply, pb.SubmitToolOutputsResponse):
            proto.after = reply.last_event
        self._call = self._watch(proto)
        await self._call.open()

    async def __aiter__(self) -> AsyncIterator[tuple[int, pb.WatchRunResponse]]:
        """Yield the events, all with call number 0."""
        if self._call is not None:
            async for event in self._call:
                yield event

    def stop(self, error: DomainError) -> None:
        """Cancel the calls."""
        if self._stopped is not None:
            return
        self._stopped = error
        if self._call is not None:
            self._call.stop(error)
        elif self._opening is not None:
            self._opening.cancel()


class RunResponder:
    """Responds with a run, or with its events."""

    def __init__(
        self, scope: Scope, control: ControlClient, include: list[str], context: AppContext
    ) -> None:
        self._scope = scope
        self._control = control
        self._include = include
        self._context = context

    async def respond(self, start_run: _StartRun, *, stream: bool | None) -> Response:
        """Create or resume a run, and respond with it or with a stream of its events."""
        if not stream:
            reply = await start_run()
            set_rate_limits(self._scope, reply)
            return RUN.respond(reply)
        start = functools.partial(StartedRun, start_run, self._control.stream)
        return self._context.stream_response(start, RunFrames(self._include), ASSISTANT_PARAMS)


async def _responder(
    request: Request, control: Control, include: Include, context: Context
) -> RunResponder:
    return RunResponder(request.scope, control, include, context)


Responder = Annotated[RunResponder, Depends(_responder)]


def _poll_headers(run: Run) -> dict[str, str]:
    return {"openai-poll-after-ms": str(poll_after_ms(run, time.time()))}


RUN = Resource(Run, _poll_headers)

router = APIRouter(prefix="/v1/threads")
rpc = RpcRoutes(router, ASSISTANT_PARAMS)


@router.post(
    "/runs",
    **operation(
        "Create a thread and a run",
        Run,
        json_body(run_requests.ThreadAndRunBody),
        events=ThreadEvent,
    ),
)
async def create_thread_and_run(
    control: Control, responder: Responder, fields: JsonObject, request_id: IdempotencyKey
) -> Response:
    """Create a thread and a run on it. With `stream`, return the run's events."""
    body = await convert(run_requests.parse_thread_and_run, fields)
    with openai_names(ASSISTANT_PARAMS):
        proto = await convert(run_requests.create_thread_and_run_request, body, request_id)
        create = functools.partial(control.call, proto, pb.CreateThreadAndRunResponse)
        return await responder.respond(create, stream=body.stream)


@router.post(
    "/{thread_id}/runs",
    **operation("Create a run", Run, json_body(run_requests.RunBody), events=ThreadEvent),
)
async def create_run(
    control: Control,
    responder: Responder,
    thread_id: str,
    fields: JsonObject,
    request_id: IdempotencyKey,
) -> Response:
    """Create a run on a thread, which is locked until the run has ended."""
    body = await convert(run_requests.parse_run, fields)
    with openai_names(ASSISTANT_PARAMS):
        proto = await convert(run_requests.create_run_request, thread_id, body, request_id)
        create = functools.partial(control.call, proto, pb.CreateRunResponse)
        return await responder.respond(create, stream=body.stream)


@rpc.route("GET", "/{thread_id}/runs", "List the runs", Page(Run), query=PageQuery)
def list_runs(request: Request, thread_id: str) -> pb.ListRunsRequest:
    """List runs, paged by `after`, `before`, `limit` and `order`."""
    return pb.ListRunsRequest(thread_id=thread_id, **parse_page_fields(request.query_params))


@rpc.route("GET", _ONE_RUN, "Retrieve a run", RUN)
def retrieve_run(thread_id: str, run_id: str) -> pb.GetRunRequest:
    """Retrieve a run. The header `openai-poll-after-ms` suggests a polling interval."""
    return pb.GetRunRequest(thread_id=thread_id, run_id=run_id)


@rpc.route("POST", _ONE_RUN, "Update a run", RUN, MetadataBody)
def update_run(thread_id: str, run_id: str, body: JsonObject) -> pb.UpdateRunRequest:
    """Replace the metadata of a run."""
    return run_requests.update_run_request(thread_id, run_id, body)


@rpc.route("POST", f"{_ONE_RUN}/cancel", "Cancel a run", RUN)
def cancel_run(thread_id: str, run_id: str) -> pb.CancelRunRequest:
    """Cancel a run. Its messages so far are kept."""
    return pb.CancelRunRequest(thread_id=thread_id, run_id=run_id)


@router.post(
    f"{_ONE_RUN}/submit_tool_outputs",
    **operation(
        "Submit tool outputs", Run, json_body(run_requests.ToolOutputsBody), events=ThreadEvent
    ),
)
async def submit_tool_outputs(
    control: Control,
    responder: Responder,
    thread_id: str,
    run_id: str,
    fields: JsonObject,
    request_id: IdempotencyKey,
) -> Response:
    """Submit the outputs of all required calls. The run then continues."""
    body = await convert(run_requests.parse_outputs, fields)
    proto = run_requests.submit_request(thread_id, run_id, body, request_id)
    submit = functools.partial(control.call, proto, pb.SubmitToolOutputsResponse)
    with openai_names(ASSISTANT_PARAMS):
        return await responder.respond(submit, stream=body.stream)


@router.get(
    f"{_ONE_RUN}/events",
    **operation(
        "Stream the events of a run", (), query={"starting_after": INTEGER}, events=ThreadEvent
    ),
)
async def follow_run(
    control: Control,
    request: Request,
    thread_id: str,
    run_id: str,
    include: Include,
    context: Context,
) -> Response:
    """Stream past and future events, those after `starting_after` or the header Last-Event-ID.
    Extension of Corral."""
    after = request.query_params.get("starting_after")
    after = request.headers.get("last-event-id") if after is None else after
    proto = run_requests.watch_request(thread_id, run_id, after)
    watch = functools.partial(control.follow, proto)
    return context.stream_response(watch, RunFrames(include), _EVENT_PARAMS)


@router.get(
    f"{_ONE_RUN}/steps", **operation("List run steps", page_shape(RunStep), query=PageQuery)
)
async def list_steps(
    control: Control, request: Request, thread_id: str, run_id: str, include: Include
) -> Response:
    """List steps, paged by `after`, `before`, `limit` and `order`."""
    with openai_names(ASSISTANT_PARAMS):
        proto = pb.ListRunStepsRequest(
            thread_id=thread_id, run_id=run_id, **parse_page_fields(request.query_params)
        )
        write = functools.partial(
            step_object, with_results=run_requests.wants_search_results(include)
        )
        page = await control.call(proto, pb.ListRunStepsResponse)
    return json_response(list_object(page.steps, write, page.next_page_token))


@router.get(f"{_ONE_RUN}/steps/{{step_id}}", **operation("Retrieve a run step", RunStep))
async def retrieve_step(
    control: Control, thread_id: str, run_id: str, step_id: str, include: Include
) -> Response:
    """Retrieve a step of a run."""
    with_results = run_requests.wants_search_results(include)
    proto = pb.GetRunStepRequest(thread_id=thread_id, run_id=run_id, step_id=step_id)
    reply = await control.call(proto, pb.GetRunStepResponse)
    return json_response(step_object(reply.step, with_results=with_results))
