"""Responses over WebSockets: lanes of frames, and the history of responses that are not stored.

A history is that of its connection: only it can continue from those responses.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from corral.control.v1 import item_pb2, response_event_pb2, response_pb2
from corral.control.v1 import response_service_pb2 as pb
from starlette.websockets import WebSocket, WebSocketDisconnect

from gateway.auth import Caller
from gateway.context import AppContext
from gateway.http.middleware import new_request_id
from openai_wire.errors import RESPONSE_PARAMS, with_openai_names
from openai_wire.responses.events import event_object
from openai_wire.responses.requests import new_response
from openai_wire.responses.socket_frames import (
    CreateFrame,
    create_frame,
    error_text,
    event_text,
    frame_fields,
    lane_of,
)
from svc_kit.errors import (
    CallerCancelled,
    DomainError,
    InternalError,
    InvalidType,
    QueueFull,
    WebsocketConnectionLimitReached,
)
from svc_kit.logs import request_id_var

MOST_RESPONSES: Final = 16


@dataclass(frozen=True)
class _Past:
    """How a response was reached."""

    base: str
    """The stored response before the items; empty: none."""
    items: tuple[item_pb2.Item, ...]
    num_bytes: int


class LocalHistory:
    """The responses of one connection that are stored nowhere."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._pasts: dict[str, _Past] = {}

    def resumed(self, request: response_pb2.NewResponse) -> response_pb2.NewResponse:
        """The same request, in words that the service understands: with the items themselves in
        the place of an id that only this connection knows."""
        past = self._pasts.get(request.previous_response_id)
        if past is None:
            return request
        resumed = response_pb2.NewResponse(
            settings=request.settings, previous_response_id=past.base, input=past.items
        )
        resumed.input.extend(request.input)
        return resumed

    def keep(
        self,
        response_id: str,
        request: response_pb2.NewResponse,
        output: Iterable[item_pb2.Item],
    ) -> None:
        """Remember a response: `request` is the request as the service got it."""
        items = (*request.input, *output)
        num_bytes = sum(item.ByteSize() for item in items)
        self._pasts[response_id] = _Past(request.previous_response_id, items, num_bytes)
        while len(self._pasts) > MOST_RESPONSES or self._num_bytes > self._most_bytes:
            del self._pasts[next(iter(self._pasts))]

    def forget(self, response_id: str) -> None:
        """Remove a response that could not be continued."""
        self._pasts.pop(response_id, None)

    @property
    def _num_bytes(self) -> int:
        return sum(past.num_bytes for past in self._pasts.values())


_log = logging.getLogger(__name__)
MAX_LANES: Final = 16
MAX_WAITING: Final = 16
"""Frames that wait in one lane."""
_CLOSING_S: Final = 1.0
"""How long a client that does not read is waited for in order to close."""
_COMPLETED: Final = ("completed", "incomplete")
_ENDED: Final = (*_COMPLETED, "failed", "cancelled")


async def identified(websocket: WebSocket, context: AppContext) -> Caller:
    """Who has a connection: asked when it opens and for each response, because a key may be revoked
    meanwhile. Raises what `Authentication.identify` does."""
    return await context.authentication.identify(websocket, "GET /v1/responses")


class ResponseSocket:
    """One connection of one caller."""

    def __init__(self, websocket: WebSocket, context: AppContext) -> None:
        self._websocket = websocket
        self._context = context
        self._history = LocalHistory(context.settings.body_limit_bytes)
        self._waiting: dict[str, deque[CreateFrame]] = {}
        self._lanes: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Serve the connection until the client leaves or its time is over."""
        await self._websocket.accept()
        limit_s = self._context.settings.websocket_max_age_s
        try:
            async with asyncio.timeout(limit_s):
                await self._read()
        except TimeoutError:
            await self._retire(WebsocketConnectionLimitReached(limit_s=int(limit_s)))
        finally:
            for lane in self._lanes.values():
                lane.cancel()
            await asyncio.gather(*self._lanes.values(), return_exceptions=True)

    async def _read(self) -> None:
        while (message := await self._websocket.receive())["type"] != "websocket.disconnect":
            await self._take(message)

    async def _take(self, message: Mapping[str, Any]) -> None:
        """Put a frame into its lane, or refuse it."""
        lane = ""
        try:
            text = message.get("text")
            if text is None:
                raise InvalidType(field="frame", expected="text")
            fields = frame_fields(text)
            lane = lane_of(fields)
            self._enqueue(create_frame(fields, len(text)))
        except DomainError as error:
            await self._say(error_text(error, lane))

    def _enqueue(self, frame: CreateFrame) -> None:
        """Answer a frame now, or behind those of its lane. Raises QueueFull."""
        waiting = self._waiting.get(frame.lane)
        if waiting is not None:
            self._check_room(frame, len(waiting))
            waiting.append(frame)
            return
        if len(self._lanes) >= MAX_LANES:
            raise QueueFull(bound="requests", depth=len(self._lanes), limit=MAX_LANES)
        self._waiting[frame.lane] = deque()
        self._lanes[frame.lane] = asyncio.create_task(self._work(frame))

    def _check_room(self, frame: CreateFrame, depth: int) -> None:
        """That a lane has room for a frame, and that what waits in all of them is no more than one
        body may be. Raises QueueFull."""
        if depth >= MAX_WAITING:
            raise QueueFull(bound="requests", depth=depth, limit=MAX_WAITING)
        held = sum(each.size for frames in self._waiting.values() for each in frames)
        limit = self._context.settings.body_limit_bytes
        if held + frame.size > limit:
            raise QueueFull(bound="characters", depth=held, limit=limit)

    async def _work(self, frame: CreateFrame) -> None:
        """Answer a frame, and what comes to wait in its lane meanwhile, in order."""
        lane, waiting = frame.lane, self._waiting[frame.lane]
        try:
            await self._answer(frame)
            while waiting:
                await self._answer(waiting.popleft())
        except WebSocketDisconnect:
            return  # who reads the connection hears of it too
        finally:
            del self._waiting[lane], self._lanes[lane]

    async def _answer(self, frame: CreateFrame) -> None:
        request_id_var.set(new_request_id())
        previous = frame.body.previous_response_id or ""
        try:
            request = new_response(frame.body)
            caller = await identified(self._websocket, self._context)
            answer = self._generate if frame.generates else self._prepare
            is_continued = await answer(frame, request, caller)
        except DomainError as error:
            is_continued = False
            await self._say(error_text(with_openai_names(error, RESPONSE_PARAMS), frame.lane))
        except WebSocketDisconnect:
            raise
        except Exception:  # a defect; its client must not wait for ever, and the lane goes on
            _log.exception("a response over a WebSocket failed")
            is_continued = False
            defect = InternalError(request_id=request_id_var.get())
            await self._say(error_text(defect, frame.lane))
        if not is_continued:
            self._history.forget(previous)

    async def _generate(
        self, frame: CreateFrame, wanted: response_pb2.NewResponse, caller: Caller
    ) -> bool:
        """Have the model answer; whether it did."""
        resumed = self._history.resumed(wanted)
        control = self._context.control
        request = pb.StreamResponseRequest(new_response=resumed)
        call = control.stream(control.responses.StreamResponse, request, caller)
        ended = ""
        try:
            with self._context.live.holding(call):
                await call.open()
                async for _, message in call:
                    kind = message.event.WhichOneof("event") or ""
                    if kind in _COMPLETED and wanted.settings.store is False:
                        self._keep(getattr(message.event, kind), resumed)
                    ended = kind if kind in _ENDED else ended
                    await self._tell(frame, message.event)
        finally:
            call.stop(CallerCancelled())
        return ended in _COMPLETED

    async def _prepare(
        self, frame: CreateFrame, wanted: response_pb2.NewResponse, caller: Caller
    ) -> bool:
        """Prefill the context of a later response, and return an id for it."""
        resumed = self._history.resumed(wanted)
        control = self._context.control
        request = pb.PrepareResponseRequest(new_response=resumed)
        read = await control.call(
            control.responses.PrepareResponse,
            request,
            caller,
            timeout_s=control.transfer_timeout_s,
        )
        response = response_pb2.Response(
            id=f"resp_{self._context.suffixes()}",
            state=response_pb2.Response.STATE_IN_PROGRESS,
            settings=wanted.settings,
            previous_response_id=wanted.previous_response_id,
        )
        response.create_time.FromSeconds(int(self._context.clock()))
        await self._tell(frame, response_event_pb2.ResponseEvent(created=response))
        response.state = response_pb2.Response.STATE_COMPLETED
        response.complete_time.CopyFrom(response.create_time)
        response.usage.input_tokens = read.input_tokens
        response.usage.cached_tokens = read.cached_tokens
        self._keep(response, resumed)
        done = response_event_pb2.ResponseEvent(sequence_number=1, completed=response)
        await self._tell(frame, done)
        return True

    def _keep(self, response: response_pb2.Response, request: response_pb2.NewResponse) -> None:
        self._history.keep(response.id, request, response.output)

    async def _tell(self, frame: CreateFrame, event: response_event_pb2.ResponseEvent) -> None:
        """Write an event; the client sees the id that it went on from."""
        written = event_object(event)
        if "response" in written and frame.body.previous_response_id:
            written["response"]["previous_response_id"] = frame.body.previous_response_id
        await self._say(event_text(written, frame.lane))

    async def _say(self, text: str) -> None:
        """Write a frame; it waits while the client does not read."""
        await self._websocket.send_text(text)

    async def _retire(self, reason: DomainError) -> None:
        """Say why, let what runs end, and close: with as much time as a draining server would
        give, also where the client does not read."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._context.settings.drain_grace_s):
                await self._say(error_text(reason, ""))
                await asyncio.gather(*self._lanes.values(), return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING_S):
                await self._websocket.close()
