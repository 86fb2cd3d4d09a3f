"""A stream of Chat or Generate that goes on elsewhere when its replica is full or lost.

It has the methods of grpc.aio's calls that its callers use.
"""

import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import grpc.aio

from svc_kit.errors import EngineRestarting
from svc_kit.errors.status import from_rpc_error
from svc_kit.rpc.generation_progress import GenerationProgress
from svc_kit.rpc.interceptors import MAY_MOVE_KEY
from svc_kit.rpc.prefix_key import Generation, prefix_key

_log = logging.getLogger(__name__)
PREFIX_KEY: Final = "x-prefix-key"
"""The metadata by which ring_hash, or a proxy, chooses the home of a generation."""
_MAX_MOVES: Final = 2
_MAX_ENGINES_DIED: Final = 2
"""A call during which so many engines died may be why, and ends no other."""
Start = Callable[..., Any]
Metadata = Sequence[tuple[str, str]]


class MovableStream:
    """One generation: first at the home of its prefix, then, if need be, over `spread`.

    A call that is lost before its first message is sent again. Later it goes on behind the tokens
    that were delivered, if its request can be resumed; else it fails with the error of the loss.
    """

    def __init__(
        self,
        home: Start,
        spread: Start,
        request: Generation,
        *,
        metadata: Metadata,
        timeout: float | None,
        outlives_engines: bool,
    ) -> None:
        """`outlives_engines`: it also moves if the engine died while it computed the call."""
        self._spread = spread
        self._metadata = tuple(metadata)
        self._outlives_engines = outlives_engines
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._progress = GenerationProgress(request)
        self._ready: deque[Any] = deque()
        self._num_moves = self._num_engines_died = 0
        self._loss: grpc.aio.AioRpcError | None = None
        """Of an answer whose rest no other replica has accepted yet."""
        self._is_cancelled = False
        key = prefix_key(request, dict(self._metadata))
        self._call = home(
            self._progress.next_request(),
            metadata=(*self._metadata, (PREFIX_KEY, key), (MAY_MOVE_KEY, "1")),
            timeout=timeout,
        )

    async def read(self) -> Any:
        """The next message; EOF after the last. Raises AioRpcError."""
        while not self._ready:
            message = await self._read_attempt()
            if message is grpc.aio.EOF:
                return message
            delivered = self._progress.advance(message)
            if self._progress.met_other_model and self._loss is not None:
                self._call.cancel()
                raise self._loss
            self._loss = None
            self._ready += delivered
        return self._ready.popleft()

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    def cancel(self) -> bool:
        """Cancel the running attempt, and make no other."""
        self._is_cancelled = True
        cancelled: bool = self._call.cancel()
        return cancelled

    async def initial_metadata(self) -> Any:
        """That of the last attempt."""
        return await self._call.initial_metadata()

    async def _read_attempt(self) -> Any:
        while True:
            try:
                return await self._call.read()
            except grpc.aio.AioRpcError as error:
                if not self._may_move(error):
                    raise (self._loss or error) from None
                if self._progress.is_started:
                    self._loss = self._loss or error
                _log.info("a generation moves to another replica: %s", error.details())
            self._num_moves += 1
            self._call = self._spread(
                self._progress.next_request(), metadata=self._metadata, timeout=self._remaining_s()
            )

    def _may_move(self, error: grpc.aio.AioRpcError) -> bool:
        if self._is_cancelled or self._num_moves == _MAX_MOVES:
            return False
        if self._progress.is_started and not self._progress.is_resumable:
            return False
        if error.code() is grpc.StatusCode.NOT_FOUND:  # another one may have the model
            return not self._progress.is_started and self._num_moves == 0
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            return False
        decoded = from_rpc_error(error)
        if not isinstance(decoded, EngineRestarting) or decoded.phase is None:
            return True
        self._num_engines_died += 1
        return self._outlives_engines and self._num_engines_died < _MAX_ENGINES_DIED

    def _remaining_s(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
