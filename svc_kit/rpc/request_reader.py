"""Reads the messages of calls, with limits on their size, on how long each takes to arrive, and on
how many arrive slowly at the same time.

gRPC's own server reads the message of a unary call before it calls the handler, whoever calls, and
its size limit is one for all methods. Here messages are read once the caller is authenticated.
"""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError, Message

from svc_kit.errors import DeadlineExpired, DomainError, InvalidField, QueueFull, RequestTooLarge
from svc_kit.logs import project_var
from svc_kit.off_loop import ConversionTurns
from svc_kit.rpc.field_count import check_fields
from svc_kit.rpc.field_limits import check_limits
from svc_kit.settings.groups import ServerSettings

SMALL_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""The largest message of methods that take no files, pictures or long texts: gRPC's default."""
PUBLIC_MESSAGE_BYTES: Final = 4096
"""The largest message of methods that need no credential."""
HARD_LIMIT_MARGIN: Final = 64 * 1024
"""gRPC refuses messages that exceed the limit by more; the error of smaller ones has details."""
_LARGE: Final = {
    "corral.inference.v1.InferenceService": "Generate Chat Embed Rerank Tokenize Detokenize "
    "CountTokens RenderChat",
    "vllm.grpc.engine.VllmEngine": "Generate Embed",
    "corral.control.v1.FileService": "CreateFile",
    "corral.control.v1.UploadService": "AddUploadPart",
    "corral.control.v1.AdapterService": "CreateAdapter",
    "corral.control.v1.ResponseService": "CreateResponse StreamResponse CountInputTokens "
    "PrepareResponse CompactResponse",
    "corral.control.v1.ConversationService": "CreateConversation CreateConversationItems",
    "corral.control.v1.ThreadService": "CreateThread",
    "corral.control.v1.MessageService": "CreateMessage",
    "corral.control.v1.RunService": "CreateRun CreateThreadAndRun SubmitToolOutputs",
}
LARGE_METHODS: Final = frozenset(
    f"/{service}/{method}" for service, methods in _LARGE.items() for method in methods.split()
)
"""Methods whose messages may have `ServerSettings.max_message_bytes`."""
SLOW_AFTER_S: Final = 0.1
"""When a message counts as slow. One whose sender waits for nothing has arrived long before."""
_MAX_DISCARDED_BYTES: Final = 1024 * 1024
_MAX_DISCARD_S: Final = 5.0
_PAUSE_S: Final = 0.5
_PARSED_AT_ONCE_BYTES: Final = 256 * 1024
"""Of a smaller message, 10,000 objects are parsed in a few milliseconds."""
_UNARY_UNITS: Final = 4
_STREAM_UNITS: Final = 1
"""A message of a client stream counts less: its sender may have nothing to send."""
_PUBLIC_UNITS: Final = 2 * _UNARY_UNITS


@dataclass(eq=False, slots=True)
class _Arrival:
    """A message that is being received."""

    owner: str
    """The project of the caller; empty if it is not known."""
    units: int
    started: float
    deadline: float
    timer: asyncio.Timeout
    """Ends the reading."""
    is_slow: bool = False
    is_ended: bool = False
    num_others: int | None = None
    """The slow units of the owner when this message was refused; None if it was not."""


class RequestReader:
    """Reads the messages of all calls of a server."""

    def __init__(self, settings: ServerSettings) -> None:
        self._max_bytes = settings.max_message_bytes
        self._timeout_s = settings.receive_timeout_s
        slots = max(2, settings.receive_budget_bytes // settings.max_message_bytes)
        self._max_units = slots * _UNARY_UNITS
        self._arrivals: dict[_Arrival, None] = {}
        """In the order of their start."""
        self._slow: Counter[str] = Counter()
        """Units of slow messages by owner."""
        self._sweeper: asyncio.TimerHandle | None = None
        self._turns = ConversionTurns()

    def parser(
        self, method: str, deserialize: Callable[[bytes], Any] | None, *, is_public: bool
    ) -> Callable[[bytes], Any]:
        """A function that parses the messages of a method.

        It raises RequestTooLarge, TooLong, InvalidField and the errors of `check_limits`.
        """
        limit = self._max_bytes
        if is_public:
            limit = PUBLIC_MESSAGE_BYTES
        elif method not in LARGE_METHODS:
            limit = min(limit, SMALL_MESSAGE_BYTES)

        def parse(raw: bytes) -> Any:
            if len(raw) > limit:
                raise RequestTooLarge(size=len(raw), limit=limit)
            if deserialize is None:
                return raw
            check_fields(raw, deserialize)
            try:
                message = deserialize(raw)
            except DecodeError:
                problem = "not a valid protobuf encoding of the method's request message"
                raise InvalidField(field="request", problem=problem) from None
            if isinstance(message, Message):
                check_limits(message)
            return message

        return parse

    async def read_one(
        self, context: grpc.aio.ServicerContext[Any, Any], parse: Callable[[bytes], Any]
    ) -> Any:
        """Read and parse the message of a unary request. Large ones are parsed in threads, for
        projects in turn.

        Raises DeadlineExpired, QueueFull if too many messages of the caller's project, or of all,
        arrive slowly, InvalidField if there is none, and the errors of `parse`.
        """
        raw = await self._read(context, _UNARY_UNITS, self._timeout_s)
        if raw is grpc.aio.EOF:
            raise InvalidField(field="request", problem="the call has no request message")
        return await self._parse(raw, parse)

    async def read_each(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        parse: Callable[[bytes], Any],
        *,
        is_long_lived: bool,
    ) -> AsyncIterator[Any]:
        """Read and parse the messages of a client stream, which may wait forever if it is
        long-lived. Large ones are parsed like those of `read_one`.

        Raises DeadlineExpired and QueueFull like `read_one`, and the errors of `parse`.
        """
        timeout_s = None if is_long_lived else self._timeout_s
        while (raw := await self._read(context, _STREAM_UNITS, timeout_s)) is not grpc.aio.EOF:
            yield await self._parse(raw, parse)

    async def _parse(self, raw: bytes, parse: Callable[[bytes], Any]) -> Any:
        if len(raw) > _PARSED_AT_ONCE_BYTES:
            return await self._turns.call(parse, raw)
        return parse(raw)

    async def discard_rest(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Read what a refused client is still sending, up to `_MAX_DISCARDED_BYTES` and for
        `_MAX_DISCARD_S`, until it pauses for `_PAUSE_S`.

        If the status arrives while a client of grpc.aio writes, it reports INTERNAL instead.
        """
        now, num_bytes = asyncio.get_running_loop().time, 0
        end = now() + _MAX_DISCARD_S
        with suppress(TimeoutError, grpc.aio.BaseError):
            while num_bytes < _MAX_DISCARDED_BYTES:
                async with asyncio.timeout_at(min(end, now() + _PAUSE_S)):
                    raw = await context.read()
                if raw is grpc.aio.EOF:
                    return
                num_bytes += len(raw)

    async def _read(
        self, context: grpc.aio.ServicerContext[Any, Any], units: int, timeout_s: float | None
    ) -> Any:
        loop, timer = asyncio.get_running_loop(), asyncio.timeout(None)
        now = loop.time()
        deadline = math.inf if timeout_s is None else now + timeout_s
        arrival = _Arrival(project_var.get(), units, now, deadline, timer)
        self._arrivals[arrival] = None
        if self._sweeper is None:
            self._sweeper = loop.call_later(SLOW_AFTER_S, self._sweep, loop)
        try:
            async with timer:
                return await context.read()
        except TimeoutError:
            if not timer.expired():
                raise
            raise self._refusal(arrival) from None
        finally:
            del self._arrivals[arrival]
            if arrival.is_slow:
                self._slow[arrival.owner] -= units
                self._slow += Counter()  # drops zeros

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Count messages that have become slow, and end those that are late or too many. One timer
        for all costs less than one for each message."""
        now = loop.time()
        for arrival in self._arrivals:
            if now < arrival.started + SLOW_AFTER_S:
                break
            if arrival.is_ended:
                continue
            if now >= arrival.deadline or not (arrival.is_slow or self._has_room(arrival)):
                arrival.is_ended = True
                arrival.timer.reschedule(now)
        is_needed = bool(self._arrivals)
        self._sweeper = loop.call_later(SLOW_AFTER_S, self._sweep, loop) if is_needed else None

    def _has_room(self, arrival: _Arrival) -> bool:
        """Count a message as slow if it may be. Any of them can be as large as the server allows
        at all."""
        others = self._slow[arrival.owner]
        free = min(self._max_units - self._slow.total(), self._limit(arrival.owner) - others)
        if arrival.units > free:
            arrival.num_others = others
            return False
        self._slow[arrival.owner] += arrival.units
        arrival.is_slow = True
        return True

    def _refusal(self, arrival: _Arrival) -> DomainError:
        if arrival.num_others is None:
            return DeadlineExpired(phase="receive")
        depth, limit = arrival.num_others, self._limit(arrival.owner)
        return QueueFull(
            bound="slow messages", depth=depth // arrival.units, limit=limit // arrival.units
        )

    def _limit(self, owner: str) -> int:
        """The units of a project: half of all; those of all unknown callers together: two."""
        return self._max_units // 2 if owner else _PUBLIC_UNITS
