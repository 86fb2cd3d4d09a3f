"""Routes of runs and their steps, with their events as server-sent events."""

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Annotated

from corral.control.v1 import run_pb2
from corral.control.v1 import run_service_pb2 as pb
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Caller
from gateway.calls import StreamCall
from gateway.context import AppContext
from gateway.http.docs import answers, json_body
from gateway.http.errors import json_response
from gateway.routes.files import name_request
from gateway.sse import EventStream
from openai_wire.assistants.objects import list_object
from openai_wire.assistants.run_objects import (
    DONE,
    error_frame,
    event_frame,
    poll_after_ms,
    run_object,
    step_object,
)
from openai_wire.assistants.run_requests import (
    RunBody,
    ThreadAndRunBody,
    ToolOutputsBody,
    create_run_request,
    create_thread_and_run_request,
    includes_results,
    parse_outputs,
    parse_run,
    parse_thread_and_run,
    submit_request,
    update_run_request,
    watch_request,
)
from openai_wire.assistants.thread_requests import MetadataBody
from openai_wire.errors import ASSISTANT_PARAMS, openai_names, with_openai_names
from openai_wire.shared.pagination import PageQuery, page_fields, page_query
from svc_kit.errors import DomainError


class RunFrames:
    """Turns the messages of WatchRun into frames."""

    def __init__(self, *, with_results: bool) -> None:
        """`with_results`: with the passages that searches found."""
        self._with_results = with_results

    def payloads(self, message: pb.WatchRunResponse, _call: int = 0) -> Iterable[bytes]:
        """The frame of one event, where OpenAI has one."""
        frame = event_frame(message, with_results=self._with_results)
        return () if frame is None else (frame,)

    def closing(self) -> Iterable[bytes]:
        """What ends the stream."""
        return (DONE,)


class RunStream(EventStream):
    """Server-sent events that bring their own names and numbers."""

    def __init__(self, ping_interval_s: float, *, with_results: bool) -> None:
        super().__init__(RunFrames(with_results=with_results), ASSISTANT_PARAMS, ping_interval_s)

    def _framed(self, payload: bytes) -> bytes:
        return payload

    def _failure(self, error: DomainError) -> bytes:
        return error_frame(with_openai_names(error, ASSISTANT_PARAMS))


_POLL_HEADER = "openai-poll-after-ms"


def runs_router(context: AppContext) -> APIRouter:
    """The routes that begin runs and list them."""
    control = context.control
    router = APIRouter(prefix="/v1/threads")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.post(
        "/runs",
        summary="Begin a thread and a run",
        openapi_extra=json_body(ThreadAndRunBody),
        responses=answers("A run, or its events.", stream=True),
    )
    async def create_thread_and_run(request: Request, caller: known_caller) -> Response:
        """Begins a thread and a run on it; with `stream`, its events."""
        body = parse_thread_and_run(await context.read_body(request))
        with openai_names(ASSISTANT_PARAMS):
            wanted = create_thread_and_run_request(body, name_request(request))
            create = functools.partial(
                control.call, control.runs.CreateThreadAndRun, wanted, caller
            )
            if body.stream:
                return _followed(context, request, caller, _begun(create))
            return _run_response((await create()).run)

    @router.post(
        "/{thread_id}/runs",
        summary="Begin a run",
        openapi_extra=json_body(RunBody),
        responses=answers("A run, or its events.", stream=True),
    )
    async def create_run(request: Request, thread_id: str, caller: known_caller) -> Response:
        """Begins a run on a thread, which takes nothing else until the run has ended."""
        body = parse_run(await context.read_body(request))
        with openai_names(ASSISTANT_PARAMS):
            wanted = create_run_request(thread_id, body, name_request(request))
            create = functools.partial(control.call, control.runs.CreateRun, wanted, caller)
            if body.stream:
                return _followed(context, request, caller, _begun(create))
            return _run_response((await create()).run)

    @router.get("/{thread_id}/runs", summary="List the runs", responses=answers("A list of runs."))
    async def list_runs(request: Request, thread_id: str, caller: known_caller) -> Response:
        """A page of runs: `after`, `before`, `limit` and `order` choose it."""
        with openai_names(ASSISTANT_PARAMS):
            query = page_query(PageQuery, request.query_params)
            wanted = pb.ListRunsRequest(thread_id=thread_id, **page_fields(query))
            page = await control.call(control.runs.ListRuns, wanted, caller)
        has_more = bool(page.next_page_token)
        return json_response(list_object(page.runs, run_object, has_more=has_more))

    return router


def run_router(context: AppContext) -> APIRouter:
    """The routes of one run."""
    control = context.control
    router = APIRouter(prefix="/v1/threads/{thread_id}/runs/{run_id}")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.get("", summary="Describe a run", responses=answers("A run."))
    async def retrieve_run(thread_id: str, run_id: str, caller: known_caller) -> Response:
        """One run; a header suggests when to poll again."""
        wanted = pb.GetRunRequest(thread_id=thread_id, run_id=run_id)
        reply = await control.call(control.runs.GetRun, wanted, caller)
        return _run_response(reply.run)

    @router.post(
        "",
        summary="Change a run",
        openapi_extra=json_body(MetadataBody),
        responses=answers("A run."),
    )
    async def update_run(
        request: Request, thread_id: str, run_id: str, caller: known_caller
    ) -> Response:
        """Replaces a run's metadata."""
        with openai_names(ASSISTANT_PARAMS):
            asked = update_run_request(thread_id, run_id, await context.read_body(request))
            reply = await control.call(control.runs.UpdateRun, asked, caller)
            return _run_response(reply.run)

    @router.post("/cancel", summary="Give up", responses=answers("The run."))
    async def cancel_run(thread_id: str, run_id: str, caller: known_caller) -> Response:
        """Ends a run; what it has written stays."""
        wanted = pb.CancelRunRequest(thread_id=thread_id, run_id=run_id)
        reply = await control.call(control.runs.CancelRun, wanted, caller)
        return _run_response(reply.run)

    @router.post(
        "/submit_tool_outputs",
        summary="Answer its calls",
        openapi_extra=json_body(ToolOutputsBody),
        responses=answers("The run, or its events.", stream=True),
    )
    async def submit_tool_outputs(
        request: Request, thread_id: str, run_id: str, caller: known_caller
    ) -> Response:
        """Submits the outputs of all calls of a run, which resumes with them."""
        body = parse_outputs(await context.read_body(request))
        asked = submit_request(thread_id, run_id, body, name_request(request))
        submit = functools.partial(control.call, control.runs.SubmitToolOutputs, asked, caller)
        if body.stream:
            return _followed(context, request, caller, _gone_on(submit))
        with openai_names(ASSISTANT_PARAMS):
            return _run_response((await submit()).run)

    return router


def run_details_router(context: AppContext) -> APIRouter:
    """The routes of what happens in a run: its events and its steps."""
    control = context.control
    router = APIRouter(prefix="/v1/threads/{thread_id}/runs/{run_id}")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.get("/events", summary="Follow", responses=answers("Its events.", stream=True))
    async def follow_run(
        request: Request, thread_id: str, run_id: str, caller: known_caller
    ) -> Response:
        """The events of a run behind `starting_after` or the header Last-Event-ID, also those to
        come. OpenAI had no such route."""
        after = request.query_params.get("starting_after")
        after = request.headers.get("last-event-id") if after is None else after
        asked = watch_request(thread_id, run_id, after)
        watch = functools.partial(control.stream, control.runs.WatchRun, asked, caller)
        return context.answered(watch, _stream(context, request), _EVENT_PARAMS)

    @router.get("/steps", summary="List its steps", responses=answers("A list of steps."))
    async def list_steps(
        request: Request, thread_id: str, run_id: str, caller: known_caller
    ) -> Response:
        """A page of steps: `after`, `before`, `limit`, `order` and `include` choose it."""
        with openai_names(ASSISTANT_PARAMS):
            query = page_query(PageQuery, request.query_params)
            asked = pb.ListRunStepsRequest(thread_id=thread_id, run_id=run_id, **page_fields(query))
            write = functools.partial(step_object, with_results=_with_results(request))
            page = await control.call(control.runs.ListRunSteps, asked, caller)
        return json_response(list_object(page.steps, write, has_more=bool(page.next_page_token)))

    @router.get("/steps/{step_id}", summary="Describe a step", responses=answers("A step."))
    async def retrieve_step(
        request: Request, thread_id: str, run_id: str, step_id: str, caller: known_caller
    ) -> Response:
        """One step."""
        with_results = _with_results(request)
        wanted = pb.GetRunStepRequest(thread_id=thread_id, run_id=run_id, step_id=step_id)
        reply = await control.call(control.runs.GetRunStep, wanted, caller)
        step = reply.step
        return json_response(step_object(step, with_results=with_results))

    return router


_EVENT_PARAMS = {**ASSISTANT_PARAMS, "after": "starting_after"}
_Begin = Callable[[], Awaitable[pb.WatchRunRequest]]
_Created = pb.CreateRunResponse | pb.CreateThreadAndRunResponse


def _begun(create: Callable[[], Awaitable[_Created]]) -> _Begin:
    async def begin() -> pb.WatchRunRequest:
        run = (await create()).run
        return pb.WatchRunRequest(thread_id=run.thread_id, run_id=run.id)

    return begin


def _gone_on(submit: Callable[[], Awaitable[pb.SubmitToolOutputsResponse]]) -> _Begin:
    async def begin() -> pb.WatchRunRequest:
        gone_on = await submit()
        run = gone_on.run
        return pb.WatchRunRequest(thread_id=run.thread_id, run_id=run.id, after=gone_on.last_event)

    return begin


def _followed(context: AppContext, request: Request, caller: Caller, begin: _Begin) -> Response:
    def start() -> FollowedRun:
        return FollowedRun(
            begin,
            lambda wanted: context.control.stream(context.control.runs.WatchRun, wanted, caller),
        )

    return context.answered(start, _stream(context, request), ASSISTANT_PARAMS)


def _stream(context: AppContext, request: Request) -> RunStream:
    return RunStream(context.settings.ping_interval_s, with_results=_with_results(request))


def _with_results(request: Request) -> bool:
    query = request.query_params
    return includes_results([*query.getlist("include[]"), *query.getlist("include")])


def _run_response(run: run_pb2.Run) -> Response:
    response = json_response(run_object(run))
    response.headers[_POLL_HEADER] = str(poll_after_ms(run, time.time()))
    return response


class FollowedRun:
    """The `Calls` of a run that is created, or resumed, and then followed. A client that
    disconnects ends the stream but not the run.
    """

    def __init__(
        self,
        begin: Callable[[], Awaitable[pb.WatchRunRequest]],
        watch: Callable[[pb.WatchRunRequest], StreamCall[pb.WatchRunResponse]],
    ) -> None:
        """`begin` creates the run and returns what to watch."""
        self._begin = begin
        self._watch = watch
        self._opening: asyncio.Task[pb.WatchRunRequest] | None = None
        self._call: StreamCall[pb.WatchRunResponse] | None = None
        self._stopped: DomainError | None = None

    async def open(self) -> None:
        """Returns when the run is begun, and its first event is there."""
        self._opening = asyncio.ensure_future(self._begin())
        try:
            request = await self._opening
        except asyncio.CancelledError:
            if self._stopped is not None:
                raise self._stopped from None
            raise
        self._call = self._watch(request)
        await self._call.open()

    async def __aiter__(self) -> AsyncIterator[tuple[int, pb.WatchRunResponse]]:
        """The events, all numbered 0."""
        if self._call is not None:
            async for event in self._call:
                yield event

    def stop(self, error: DomainError) -> None:
        """Cancels the following."""
        if self._stopped is not None:
            return
        self._stopped = error
        if self._call is not None:
            self._call.stop(error)
        elif self._opening is not None:
            self._opening.cancel()
