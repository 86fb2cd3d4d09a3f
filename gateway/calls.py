"""Server-streaming calls: one, or several as one stream.

Nothing is read ahead: the next message is requested when the last one has been written to the
client, so a slow client is throttled by flow control.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

import grpc.aio

from svc_kit.errors import CallerCancelled, DomainError, InternalError, UpstreamUnavailable
from svc_kit.logs import current_request_id
from svc_kit.rpc.client import translate_errors

_log = logging.getLogger(__name__)

Message = TypeVar("Message")
Message_co = TypeVar("Message_co", covariant=True)

SERVICE = "inference"
PARALLEL_PROMPTS = 16
"""How many calls of one HTTP request run at a time."""


class Calls(Protocol[Message_co]):
    """The calls behind one answer.

    `open` first, then iterate; `stop` at any time and from anywhere, also twice. After
    `stop(error)` the calls are cancelled at the server, and whoever waits here gets `error`.
    """

    async def open(self) -> None:
        """Returns when the work is accepted. Raises the DomainError it was refused with."""

    def __aiter__(self) -> AsyncIterator[tuple[int, Message_co]]:
        """The events, each with the number of its call. Raises DomainErrors."""

    def stop(self, error: DomainError) -> None:
        """Cancels the calls."""


class StreamCall(Generic[Message]):
    """A single call: the token path, and the bytes of files."""

    def __init__(
        self, call: grpc.aio.UnaryStreamCall[Any, Message], service: str = SERVICE
    ) -> None:
        """`service` is what errors call the other side."""
        self._call = call
        self._service = service
        self._first: Message | None = None
        self._stopped: DomainError | None = None

    async def open(self) -> None:
        """Waits for the first event."""
        with translate_errors(self._service):
            self._first = await self._read()
        if self._first is None:
            raise UpstreamUnavailable(service=self._service, retry_after=1.0)

    async def __aiter__(self) -> AsyncIterator[tuple[int, Message]]:
        """The events of the call, all numbered 0."""
        message = self._first
        with translate_errors(self._service):
            while message is not None:
                yield 0, message
                message = await self._read()

    def stop(self, error: DomainError) -> None:
        """Cancels the call."""
        if self._stopped is None:
            self._stopped = error
            self._call.cancel()

    async def _read(self) -> Message | None:
        """The next message, None after the last. A stopped call looks like a cancelled task."""
        try:
            message = await self._call.read()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._stopped is not None and (task is None or not task.cancelling()):
                raise self._stopped from None
            raise
        return None if message is grpc.aio.EOF else cast(Message, message)


class UnaryCall(Generic[Message]):
    """A call whose whole answer is one message. It is accepted when the answer is there."""

    def __init__(self, call: grpc.aio.UnaryUnaryCall[Any, Message], service: str = SERVICE) -> None:
        """`service` is what errors call the other side."""
        self._call = call
        self._service = service
        self._answer: list[Message] = []
        self._stopped: DomainError | None = None

    async def open(self) -> None:
        """Waits for the answer."""
        try:
            with translate_errors(self._service):
                self._answer.append(await self._call)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._stopped is not None and (task is None or not task.cancelling()):
                raise self._stopped from None
            raise

    async def __aiter__(self) -> AsyncIterator[tuple[int, Message]]:
        """The answer, numbered 0."""
        for message in self._answer:
            yield 0, message

    def stop(self, error: DomainError) -> None:
        """Cancels the call."""
        if self._stopped is None:
            self._stopped = error
            self._call.cancel()


class CallGroup(Generic[Message]):
    """Several calls read as one stream, at most PARALLEL_PROMPTS of them at a time."""

    def __init__(
        self,
        starts: Sequence[Callable[[], StreamCall[Message]]],
        numbered: Callable[[DomainError, int], DomainError],
    ) -> None:
        """`numbered` adds the number of the call to an error."""
        self._numbered = numbered
        self._width = min(len(starts), PARALLEL_PROMPTS)
        self._events: asyncio.Queue[tuple[int, Message] | DomainError | None] = asyncio.Queue(
            self._width
        )
        self._early: list[tuple[int, Message]] = []
        self._stopped: DomainError | None = None
        self._running: set[StreamCall[Message]] = set()
        pending = iter(list(enumerate(starts)))
        self._workers = [asyncio.create_task(self._work(pending)) for _ in range(self._width)]
        self._unfinished = self._width
        for worker in self._workers:
            worker.add_done_callback(self._ended)

    async def open(self) -> None:
        """Waits until each call of the first round has been accepted."""
        waiting = set(range(self._width))
        while waiting:
            event = await self._next()
            if event is None:
                raise UpstreamUnavailable(service=SERVICE, retry_after=1.0)
            self._early.append(event)
            waiting.discard(event[0])

    async def __aiter__(self) -> AsyncIterator[tuple[int, Message]]:
        """The events of the calls as they come."""
        for event in self._early:
            yield event
        self._early.clear()
        while (later := await self._next()) is not None:
            yield later

    def stop(self, error: DomainError) -> None:
        """Cancels all calls."""
        if self._stopped is not None:
            return
        self._stopped = error
        for call in self._running:
            call.stop(error)
        for worker in self._workers:
            worker.cancel()
        while not self._events.empty():
            self._events.get_nowait()
        self._events.put_nowait(error)

    async def _next(self) -> tuple[int, Message] | None:
        event = await self._events.get()
        if isinstance(event, DomainError):
            raise event
        return event

    async def _work(self, pending: Iterator[tuple[int, Callable[[], StreamCall[Message]]]]) -> None:
        for number, start in pending:
            call = start()
            self._running.add(call)
            try:
                await call.open()
                async for _, message in call:
                    await self._events.put((number, message))
            except DomainError as error:
                await self._events.put(self._numbered(error, number))
                return
            finally:
                call.stop(CallerCancelled())
                self._running.discard(call)
        self._unfinished -= 1
        if not self._unfinished:
            await self._events.put(None)

    def _ended(self, worker: asyncio.Task[None]) -> None:
        """A defect in a worker must not leave the reader waiting."""
        if not worker.cancelled() and (defect := worker.exception()) is not None:
            _log.error("reading a call failed", exc_info=defect)
            self.stop(InternalError(request_id=current_request_id()))
