"""Responses over WebSockets: streams of one connection, and the history of its responses.

Responses that are not stored can be continued only on the connection that generated them.
"""

import asyncio
import contextlib
import functools
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from corral.control.v1 import item_pb2, response_event_pb2, response_pb2
from corral.control.v1 import response_service_pb2 as pb
from starlette.types import Scope
from starlette.websockets import WebSocket, WebSocketDisconnect

from dialects.openai.errors import RESPONSE_PARAMS, with_openai_names
from dialects.openai.responses.events import event_object
from dialects.openai.responses.requests import new_response
from dialects.openai.responses.socket_frames import (
    CreateFrame,
    encode_error,
    encode_event,
    parse_create_frame,
    parse_stream_id,
)
from dialects.shared.ids import random_suffix
from dialects.shared.json_body import parse_object
from dialects.shared.parameters import parameter_report
from gateway.context import AppContext
from gateway.http.large_bodies import UNRESERVED_BYTES, beginning, convert, release
from gateway.http.middleware import new_request_id
from gateway.rpc import ControlClient
from svc_kit.errors import (
    DomainError,
    InternalError,
    InvalidType,
    QueueFull,
    WebsocketConnectionLimitReached,
    release_frames,
)
from svc_kit.logs import request_id_var, start_call_fields
from svc_kit.tasks import retrieve_exception

MAX_RESPONSES: Final = 16
MAX_STREAMS: Final = 16
_DISCONNECT: Final = "websocket.disconnect"
MAX_QUEUED_FRAMES: Final = 16
"""Queued frames of one stream."""
_LARGE_CHARACTERS: Final = 16 * 1024
"""A longer frame may take more than a few milliseconds to convert."""
_CLOSE_TIMEOUT_S: Final = 1.0
"""How long closing waits for a client that does not read."""
_COMPLETED: Final = ("completed", "incomplete")
_FINAL: Final = (*_COMPLETED, "failed", "cancelled")
_log = logging.getLogger(__name__)
_access_log = logging.getLogger("gateway.access")


@dataclass(frozen=True)
class _Context:
    previous_response_id: str
    """The stored response before the items, if any."""
    items: tuple[item_pb2.Item, ...]
    num_bytes: int


class LocalHistory:
    """The last MAX_RESPONSES responses of one connection that are not stored."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._contexts: dict[str, _Context] = {}

    def expand(self, request: response_pb2.NewResponse) -> response_pb2.NewResponse:
        """Replace the id of a response in this history by its items, which the service does not
        have."""
        context = self._contexts.get(request.previous_response_id)
        if context is None:
            return request
        return response_pb2.NewResponse(
            settings=request.settings,
            previous_response_id=context.previous_response_id,
            input=(*context.items, *request.input),
        )

    def add(self, response: response_pb2.Response, request: response_pb2.NewResponse) -> None:
        """Add a response. `request` is its expanded request."""
        items = (*request.input, *response.output)
        num_bytes = sum(item.ByteSize() for item in items)
        self._contexts[response.id] = _Context(request.previous_response_id, items, num_bytes)
        while len(self._contexts) > MAX_RESPONSES or self._num_bytes > self._max_bytes:
            del self._contexts[next(iter(self._contexts))]

    def remove(self, response_id: str) -> None:
        """Remove a response that could not be continued."""
        self._contexts.pop(response_id, None)

    @property
    def _num_bytes(self) -> int:
        return sum(context.num_bytes for context in self._contexts.values())


class _HeldFrame(NamedTuple):
    """A frame that is queued or running."""

    frame: CreateFrame
    memory: Scope
    """What it reserved, until it ends."""


class ResponseSocket:
    """A WebSocket connection. Streams run concurrently; the frames of a stream run in order."""

    def __init__(self, websocket: WebSocket, context: AppContext) -> None:
        self._websocket = websocket
        report = parameter_report.get()
        self._strict = report is not None and report.strict
        self._context = context
        self._history = LocalHistory(context.settings.body_limit_bytes)
        self._queues: dict[str, deque[_HeldFrame]] = {}
        """The frames of each active stream; the first one is running."""
        self._has_more = False
        """Whether more parts follow the one that was received last."""
        self._workers: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Serve the connection until the client disconnects or `websocket_max_age_s` is over."""
        await self._websocket.accept()
        limit_s = self._context.settings.websocket_max_age_s
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    await self._handle_message(await self._receive())
        except WebSocketDisconnect:
            pass
        except TimeoutError:
            await self._retire(WebsocketConnectionLimitReached(limit_s=int(limit_s)))
        finally:
            for worker in self._workers.values():
                worker.cancel()
            await self._wait_for_workers()
            for queue in self._queues.values():  # of workers that had not started
                _release_all(queue)

    async def _wait_for_workers(self) -> None:
        await asyncio.gather(*self._workers.values(), return_exceptions=True)

    async def _receive(self) -> Mapping[str, Any]:
        """The next message, or part of one. Raises WebSocketDisconnect."""
        message = await self._websocket.receive()
        if message["type"] == _DISCONNECT:
            raise WebSocketDisconnect
        self._has_more = message.get("more_body", False)
        return message

    async def _parts(self, message: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """The parts of a text. Raises InvalidType if it is none."""
        while (text := message.get("text")) is not None:
            yield text.encode()
            if not self._has_more:
                return
            message = await self._receive()
        raise InvalidType(field="frame", expected="text")

    async def _read(self, first: Mapping[str, Any], memory: Scope) -> bytes:
        """Read a text. It reserves memory if the connection has much without that."""
        unreserved, parts = UNRESERVED_BYTES - self._queued_bytes, self._parts(first)
        if self._has_more:
            return await self._context.bodies.collect(memory, parts, reserved=0)
        raw = await anext(parts)
        if len(raw) > unreserved:
            await self._context.bodies.reserve(memory, len(raw))
        return raw

    async def _handle_message(self, message: Mapping[str, Any]) -> None:
        """Run or queue a frame, or reply with an error and skip the rest of it."""
        stream_id = ""
        try:
            memory: Scope = {}
            with contextlib.ExitStack() as refused:
                refused.callback(release, memory)
                raw = await self._read(message, memory)
                fields = await self._context.bodies.parse(raw, parse_object)
                stream_id = parse_stream_id(fields)
                parse = functools.partial(parse_create_frame, strict=self._strict)
                frame = await convert(parse, fields, len(raw))
                self._enqueue(_HeldFrame(frame, memory))
                refused.pop_all()
        except DomainError as error:
            release_frames(error)
            await self._websocket.send_text(encode_error(error, stream_id))
            while self._has_more:
                await self._receive()

    def _enqueue(self, held: _HeldFrame) -> None:
        """Start a stream, or queue the frame if the stream is active. Raises QueueFull."""
        stream_id = held.frame.stream_id
        queue = self._queues.get(stream_id)
        self._check_limits(held.frame, 0 if queue is None else len(queue) - 1)
        if queue is not None:
            queue.append(held)
            return
        if len(self._workers) >= MAX_STREAMS:
            raise QueueFull(bound="requests", depth=len(self._workers), limit=MAX_STREAMS)
        self._queues[stream_id] = deque((held,))
        worker = self._workers[stream_id] = asyncio.create_task(self._work(stream_id))
        worker.add_done_callback(retrieve_exception)  # such as of a send after the close

    def _check_limits(self, frame: CreateFrame, depth: int) -> None:
        """Raise QueueFull if the stream has too many frames, or if the frames of all streams, the
        running ones included, would be larger than `body_limit_bytes`."""
        if depth >= MAX_QUEUED_FRAMES:
            raise QueueFull(bound="requests", depth=depth, limit=MAX_QUEUED_FRAMES)
        size, limit = self._queued_bytes, self._context.settings.body_limit_bytes
        if size + frame.size > limit:
            raise QueueFull(bound="bytes", depth=size, limit=limit)

    @property
    def _queued_bytes(self) -> int:
        return sum(each.frame.size for queue in self._queues.values() for each in queue)

    async def _work(self, stream_id: str) -> None:
        """Run the frames of a stream, in order."""
        queue = self._queues[stream_id]
        try:
            while queue:
                await self._run_frame(queue[0])
                release(queue.popleft().memory)
        except WebSocketDisconnect:
            return  # `run` receives the disconnect as well
        finally:
            _release_all(queue)
            del self._queues[stream_id], self._workers[stream_id]

    async def _run_frame(self, held: _HeldFrame) -> None:
        frame = held.frame
        request_id_var.set(new_request_id())
        parameter_report.set(frame.report)
        fields, started_at = start_call_fields(), time.monotonic()
        previous = frame.body.previous_response_id or ""
        self._context.bodies.set_large(is_large=frame.size > _LARGE_CHARACTERS)
        try:
            request = await convert(new_response, frame.body)
            caller = await self._context.identify_socket(self._websocket)
            control = self._context.control.for_caller(caller)
            if frame.generate:
                succeeded = await self._generate(held, request, control)
            else:
                succeeded = await self._prefill(frame, request, control)
        except DomainError as error:
            succeeded = False
            release_frames(error)
            await self._send_error(frame, with_openai_names(error, RESPONSE_PARAMS))
        except WebSocketDisconnect:
            raise
        except Exception:  # a defect fails this response; the other streams continue
            _log.exception("a response over a WebSocket failed")
            succeeded = False
            await self._send_error(frame, InternalError(request_id=request_id_var.get()))
        if not succeeded:
            self._history.remove(previous)
        fields |= {"succeeded": succeeded, "duration_s": round(time.monotonic() - started_at, 4)}
        _access_log.info("response over a WebSocket", extra={"fields": fields})

    async def _generate(
        self, held: _HeldFrame, request: response_pb2.NewResponse, control: ControlClient
    ) -> bool:
        """Generate a response. Returns whether it completed."""
        expanded = self._history.expand(request)
        proto = pb.StreamResponseRequest(new_response=expanded)
        await self._context.bodies.begin(held.memory)
        call = control.stream(proto)
        result = ""
        with self._context.active_calls.track(call):
            with beginning(held.memory):
                await call.open()
            async for _, message in call:
                kind = message.event.WhichOneof("event") or ""
                if kind in _COMPLETED and request.settings.store is False:
                    self._history.add(getattr(message.event, kind), expanded)
                result = kind if kind in _FINAL else result
                await self._send_event(held.frame, message.event)
        return result in _COMPLETED

    async def _prefill(
        self, frame: CreateFrame, request: response_pb2.NewResponse, control: ControlClient
    ) -> bool:
        """Prefill the prompt of a later response. The client gets an id to continue from."""
        expanded = self._history.expand(request)
        reply = await control.call(
            pb.PrepareResponseRequest(new_response=expanded),
            pb.PrepareResponseResponse,
            timeout_s=control.transfer_timeout_s,
        )
        response = response_pb2.Response(
            id=f"resp_{random_suffix()}",
            state=response_pb2.Response.STATE_IN_PROGRESS,
            settings=request.settings,
            previous_response_id=request.previous_response_id,
        )
        response.create_time.FromSeconds(int(time.time()))
        await self._send_event(frame, response_event_pb2.ResponseEvent(created=response))
        response.state = response_pb2.Response.STATE_COMPLETED
        response.complete_time.CopyFrom(response.create_time)
        response.usage.input_tokens = reply.input_tokens
        response.usage.cached_tokens = reply.cached_tokens
        self._history.add(response, expanded)
        completed = response_event_pb2.ResponseEvent(sequence_number=1, completed=response)
        await self._send_event(frame, completed)
        return True

    async def _send_event(
        self, frame: CreateFrame, event: response_event_pb2.ResponseEvent
    ) -> None:
        """Send an event with the client's `previous_response_id` instead of the expanded one."""
        written = event_object(event)
        if frame.report.names and event.WhichOneof("event") == "created":
            written["ignored_parameters"] = list(frame.report.names)
        if "response" in written and frame.body.previous_response_id:
            written["response"]["previous_response_id"] = frame.body.previous_response_id
        await self._websocket.send_text(encode_event(written, frame.stream_id))

    async def _send_error(self, frame: CreateFrame, error: DomainError) -> None:
        await self._websocket.send_text(encode_error(error, frame.stream_id))

    async def _retire(self, reason: DomainError) -> None:
        """Send an error, wait up to `drain_grace_s` for active streams, and close."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._context.settings.drain_grace_s):
                await self._websocket.send_text(encode_error(reason, ""))
                await self._wait_for_workers()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._websocket.close()


def _release_all(queue: deque[_HeldFrame]) -> None:
    for each in queue:
        release(each.memory)
