"""gRPC calls behind one HTTP request: unary, streaming, or several streams merged into one.

Messages are not read ahead: the next message is read after the last one was written to the client,
so that gRPC flow control throttles the service if the client is slow. Writes wait for flow control,
so that a slow service throttles the client.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar, cast

import grpc
import grpc.aio
from corral.control.v1.response_pb2 import Response
from corral.control.v1.response_service_pb2 import CreateResponseResponse, StreamResponseResponse
from corral.inference.v1 import inference_service_pb2 as pb

from svc_kit.errors import CallerCancelled, DomainError, InternalError, UpstreamUnavailable
from svc_kit.errors.status import REQUEST_ID_KEY, from_rpc_error
from svc_kit.logs import add_call_counts, add_call_fields, current_request_id
from svc_kit.rpc.client import translate_errors
from svc_kit.tasks import retrieve_exception

_log = logging.getLogger(__name__)

Message = TypeVar("Message")
Message_co = TypeVar("Message_co", covariant=True)
Request = TypeVar("Request")

PARALLEL_PROMPTS = 16
"""The maximum number of concurrent calls of one HTTP request."""


class Calls(Protocol[Message_co]):
    """The calls behind one response.

    Call `open`, then iterate. `stop` may be called at any time, also repeatedly.
    """

    async def open(self) -> None:
        """Wait until the service has accepted the calls. Raises the DomainError of a rejection."""

    def __aiter__(self) -> AsyncIterator[tuple[int, Message_co]]:
        """Yield the messages, each with the number of its call. Raises DomainErrors."""

    @property
    def first(self) -> Message_co | None:
        """The first message, once the calls are open; None if there is none."""

    def stop(self, error: DomainError) -> None:
        """Cancel the calls. Waiting callers get `error`."""


class StoppableCall:
    """A gRPC call that can be cancelled from another task."""

    def __init__(self, call: Any, service: str) -> None:
        """`service` is the name of the called service in errors."""
        self._call = call
        self._service = service
        self._stopped: DomainError | None = None

    def stop(self, error: DomainError) -> None:
        """Cancel the call. Waiting callers get `error`."""
        if self._stopped is None:
            self._stopped = error
            self._call.cancel()

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """Raise the error of `stop`. gRPC raises CancelledError for a stopped call, as for a
        cancelled task."""
        try:
            yield
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._stopped is not None and (task is None or not task.cancelling()):
                raise self._stopped from None
            raise


class StreamCall(StoppableCall, Generic[Message]):
    first: Message | None = None

    def __init__(self, call: Any, service: str, *, may_be_empty: bool = False) -> None:
        """`may_be_empty`: the stream may be silent for long, or end without a message, as one that
        is followed after its last event.
        """
        super().__init__(call, service)
        self._may_be_empty = may_be_empty

    async def open(self) -> None:
        """Wait for the first message; if the stream may be empty, until the call is accepted."""
        with self._stoppable(), translate_errors(self._service):
            if self._may_be_empty and REQUEST_ID_KEY in await self._call.initial_metadata():
                return
            self.first = await self._read()
        if self.first is None and not self._may_be_empty:
            raise UpstreamUnavailable(service=self._service, retry_after=1.0)

    async def __aiter__(self) -> AsyncIterator[tuple[int, Message]]:
        """Yield the messages, all with call number 0."""
        last = self.first
        with self._stoppable(), translate_errors(self._service):
            message = await self._read() if self.first is None else self.first
            while message is not None:
                yield 0, message
                last, message = message, await self._read()
        _log_usage(last)

    async def _read(self) -> Message | None:
        """Read the next message. None after the last."""
        message = await self._call.read()
        return None if message is grpc.aio.EOF else cast(Message, message)


class UnaryCall(StoppableCall, Generic[Message]):
    """A unary call. It counts as accepted when the reply has arrived."""

    first: Message | None = None

    async def open(self) -> None:
        """Wait for the reply."""
        with self._stoppable(), translate_errors(self._service):
            self.first = await self._call
        _log_usage(self.first)

    async def __aiter__(self) -> AsyncIterator[tuple[int, Message]]:
        """Yield the reply, with call number 0."""
        yield 0, cast(Message, self.first)


class ComposedCall(UnaryCall[Message]):
    """Unary calls that follow each other, as one."""

    def __init__(self, calls: Coroutine[Any, Any, Message]) -> None:
        running = asyncio.ensure_future(calls)
        running.add_done_callback(retrieve_exception)  # it may be stopped before it is opened
        super().__init__(running, "")


def _log_usage(last: Any) -> None:
    """Add the token counts of a call's last message to the access log."""
    match last:
        case pb.ChatResponse() | pb.GenerateResponse():
            usage, timings = last.done.usage, last.done.timings
            add_call_counts(
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                completion_tokens=usage.completion_tokens,
            )
            if usage.HasField("divergence"):
                found = usage.divergence
                add_call_fields(divergence_token=found.token_index, divergence_field=found.field)
            if timings.HasField("first_token"):  # else no choice was started
                add_call_fields(
                    queue_s=round(timings.queue.ToTimedelta().total_seconds(), 4),
                    first_token_s=round(timings.first_token.ToTimedelta().total_seconds(), 4),
                )
        case pb.EmbedResponse() | pb.RerankResponse():
            add_call_fields(model=last.model)
            add_call_counts(prompt_tokens=last.prompt_tokens)
        case CreateResponseResponse():
            _log_response(last.response)
        case StreamResponseResponse():
            ended = getattr(last.event, last.event.WhichOneof("event") or "event", None)
            if isinstance(ended, Response):
                _log_response(ended)


def _log_response(response: Response) -> None:
    add_call_fields(model=response.settings.model)
    add_call_counts(
        prompt_tokens=response.usage.input_tokens,
        cached_tokens=response.usage.cached_tokens,
        completion_tokens=response.usage.output_tokens,
    )


class UploadCall(StoppableCall, Generic[Request, Message]):
    """A call with many request messages and one reply."""

    def __init__(self, call: Any, service: str) -> None:
        super().__init__(call, service)
        self._first_status: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._save_status)

    async def write(self, message: Request) -> None:
        """Send a message. Raises the DomainError with which the service rejected the call."""
        try:
            with self._stoppable():
                await self._call.write(message)
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            # The service has rejected the call. Its error comes with the reply, not with the write.
            await self._raise_rejection()

    async def finish(self) -> Message:
        """End the stream and wait for the reply. Raises the service's DomainErrors."""
        with self._stoppable(), translate_errors(self._service):
            await self._call.done_writing()
            return cast(Message, await self._call)

    def _save_status(self, call: Any) -> None:
        """Save the status with which the service ended the call. A write that fails afterwards
        replaces it with INTERNAL (grpc/grpc#36066).
        """
        code, trailers, details = map(
            _result_of, (call.code(), call.trailing_metadata(), call.details())
        )
        self._first_status = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailers, details)

    async def _raise_rejection(self) -> None:
        try:
            with self._stoppable(), translate_errors(self._service):
                await self._call
        except InternalError as error:
            if error.request_id:
                raise
            # Without a request id the error is gRPC's.
            status = self._first_status
            if status is not None and status.code() is not grpc.StatusCode.INTERNAL:
                raise from_rpc_error(status, self._service) from error
            # The connection was lost during the write.
            raise UpstreamUnavailable(service=self._service) from error


def _result_of(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as returned:
        return returned.value
    coroutine.close()
    return None


class CallSequence(Generic[Message]):
    """Streams that are read one after the other, each opened when the one before has ended."""

    first: Message | None = None

    def __init__(self, starts: Sequence[Callable[[], StreamCall[Message]]]) -> None:
        self._starts = list(starts)
        self._call: StreamCall[Message] | None = None
        self._stopped: DomainError | None = None

    async def open(self) -> None:
        """Open the first stream. Raises the DomainError of a rejection."""
        await self._open_next()

    async def __aiter__(self) -> AsyncIterator[tuple[int, Message]]:
        """Yield the messages of all streams, with call number 0."""
        while self._call is not None:
            async for event in self._call:
                yield event
            await self._open_next()

    def stop(self, error: DomainError) -> None:
        """Cancel the stream that is read, and open no other. Waiting callers get `error`."""
        self._stopped = self._stopped or error
        if self._call is not None:
            self._call.stop(error)

    async def _open_next(self) -> None:
        if self._stopped is not None:
            raise self._stopped
        self._call = self._starts.pop(0)() if self._starts else None
        if self._call is not None:
            await self._call.open()


class CallGroup(Generic[Message]):
    """Several calls merged into one stream. At most PARALLEL_PROMPTS run at a time."""

    def __init__(
        self,
        starts: Sequence[Callable[[], StreamCall[Message]]],
        service: str,
        add_number: Callable[[DomainError, int], DomainError],
    ) -> None:
        """`add_number` adds the number of the call to an error."""
        self._service = service
        self._add_number = add_number
        self._width = min(len(starts), PARALLEL_PROMPTS)
        self._events: asyncio.Queue[tuple[int, Message] | DomainError | None] = asyncio.Queue(
            self._width
        )
        self._buffered: list[tuple[int, Message]] = []
        self._stopped: DomainError | None = None
        self._running: set[StreamCall[Message]] = set()
        pending = iter(list(enumerate(starts)))
        self._workers = {asyncio.create_task(self._work(pending)) for _ in range(self._width)}
        self._unfinished = self._width
        for worker in self._workers:
            worker.add_done_callback(self._on_worker_done)

    @property
    def first(self) -> Message | None:
        """The first message of any call."""
        return self._buffered[0][1] if self._buffered else None

    async def open(self) -> None:
        """Wait until the first PARALLEL_PROMPTS calls have been accepted."""
        waiting = set(range(self._width))
        while waiting:
            event = await self._next()
            if event is None:
                raise UpstreamUnavailable(service=self._service, retry_after=1.0)
            self._buffered.append(event)
            waiting.discard(event[0])

    async def __aiter__(self) -> AsyncIterator[tuple[int, Message]]:
        """Yield the messages in the order of arrival."""
        for event in self._buffered:
            yield event
        self._buffered.clear()
        while (following := await self._next()) is not None:
            yield following

    def stop(self, error: DomainError) -> None:
        """Cancel all calls. Waiting callers get `error`."""
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
                await self._events.put(self._add_number(error, number))
                return
            finally:
                call.stop(CallerCancelled())
                self._running.discard(call)
        self._unfinished -= 1
        if not self._unfinished:
            await self._events.put(None)

    def _on_worker_done(self, worker: asyncio.Task[None]) -> None:
        """Fail the whole group on an unexpected error, or its reader would wait forever."""
        self._workers.discard(worker)  # which holds what cancelled it, and that the group
        if not worker.cancelled() and (defect := worker.exception()) is not None:
            _log.error("reading a call failed", exc_info=defect)
            self.stop(InternalError(request_id=current_request_id()))
