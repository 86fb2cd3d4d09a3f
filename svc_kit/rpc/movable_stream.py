"""A stream of Chat or Generate that goes on elsewhere when its replica is full or lost.

It has the methods of grpc.aio's calls that its callers use.
"""

import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

import grpc.aio

from svc_kit.errors import (
    DomainError,
    EngineRestarting,
    GenerationLost,
    ModelNotFound,
    Unavailable,
)
from svc_kit.errors.status import from_rpc_error, request_id_of, to_rpc_error
from svc_kit.metrics import MoveMetrics
from svc_kit.rpc.generation_progress import GenerationProgress, has_snapshot
from svc_kit.rpc.prefix_key import Generation, prefix_key

_log = logging.getLogger(__name__)
MAY_MOVE_KEY: Final = "x-may-move"
"""The metadata of a call that a full replica should refuse, since it is then sent elsewhere."""
WHOLE_KEY: Final = "x-whole-answer"
"""The metadata of a call whose caller shows nothing before the end of the answer."""
PREFIX_KEY: Final = "x-prefix-key"
"""The metadata by which ring_hash, or a proxy, chooses the home of a generation."""
_MAX_MOVES: Final = 2
_MAX_ENGINES_DIED: Final = 2
"""A call during which so many engines died may be why, and ends no other."""
_REFUSALS: Final = frozenset(
    {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
_OUTPUT: Final = frozenset(("delta", "finished"))
Start = Callable[..., Any]
Metadata = Sequence[tuple[str, str]]


class Candidates(NamedTuple):
    """The replicas that have the model of a request: methods that start it at each, the best one
    first. `away` is the error if others do not answer, which may have it too."""

    starts: list[Start]
    away: grpc.aio.AioRpcError | None


Find = Callable[[Any, Any], Awaitable[Candidates]]
"""Finds the candidates for a request with its metadata. Raises AioRpcError if it cannot."""


def lacks_model(error: grpc.aio.AioRpcError) -> bool:
    is_missing = error.code() is grpc.StatusCode.NOT_FOUND
    return is_missing and isinstance(from_rpc_error(error), ModelNotFound)


def is_replica_lost(error: grpc.aio.AioRpcError) -> bool:
    """Whether the call may be made at another replica, and no engine died while it computed it."""
    decoded = from_rpc_error(error)
    return isinstance(decoded, Unavailable) and not _is_engine_death(decoded)


def _is_engine_death(error: DomainError) -> bool:
    return isinstance(error, EngineRestarting) and error.phase is not None


class MovableStream:
    """One generation: first at the home of its prefix, then, if need be, over `spread`.

    A call that is lost before its first message is sent again. Later it goes on behind the tokens
    that were delivered. If its replica lacks what it names (model, adapter, snapshot), those that
    have the model are tried one after the other. If no other replica is there it fails with the
    error of the loss, and if none can go on exactly with `GenerationLost`, which says why. A call
    with `WHOLE_KEY` delivers its messages when all have arrived, and so begins again where it
    cannot go on. One from a snapshot, which replicas seek when they have accepted it, delivers them
    with the first output.
    """

    def __init__(
        self,
        home: Start,
        spread: Start,
        request: Generation,
        *,
        find: Find,
        metadata: Metadata,
        timeout: float | None,
        outlives_engines: bool,
        metrics: MoveMetrics | None = None,
    ) -> None:
        """`outlives_engines`: it also moves if the engine died while it computed the call."""
        self._metrics = metrics
        self._spread = spread
        self._find = find
        self._candidates: Candidates | None = None
        """What else the running attempt may try, if a replica lacked what it names."""
        self._metadata = tuple(metadata)
        self._outlives_engines = outlives_engines
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._progress = GenerationProgress(request)
        is_whole = (WHOLE_KEY, "1") in self._metadata
        self._whole_request = request if is_whole and not self._progress.obstacle else None
        """Of an answer that may begin again."""
        self._is_whole = is_whole
        self._from_snapshot = request if has_snapshot(request) else None
        """Whose replica is only known when there is output."""
        self._is_held_back = is_whole or self._from_snapshot is not None
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
        while self._is_held_back or not self._ready:
            message = await self._read_attempt()
            if message is grpc.aio.EOF:
                self._is_held_back = False
                break
            goes_on = self._progress.is_started
            delivered = self._progress.advance(message)
            if self._progress.obstacle and goes_on and self._loss is not None:
                self._call.cancel()
                self._begin_again(self._progress.obstacle)
                self._start_elsewhere(self._loss)
                continue
            self._loss = None
            self._ready += delivered
            if self._from_snapshot is not None and message.WhichOneof("event") in _OUTPUT:
                self._from_snapshot, self._is_held_back = None, self._is_whole
        return self._ready.popleft() if self._ready else grpc.aio.EOF

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
                if await self._has_found(error):
                    continue
                self._prepare_move(error)
                self._start_elsewhere(self._loss or error)

    async def _has_found(self, error: grpc.aio.AioRpcError) -> bool:
        """Start the attempt at another replica, if the chosen one lacks what it names. Raises
        AioRpcError if that may be at a replica that is away."""
        if self._is_cancelled or error.code() is not grpc.StatusCode.NOT_FOUND:
            return False
        if self._progress.is_started and self._loss is None:  # behind what this attempt has sent
            if self._from_snapshot is None:
                return False
            self._ready.clear()
            self._progress = GenerationProgress(self._from_snapshot)
        request = self._progress.next_request()
        try:
            if self._candidates is None:
                self._candidates = await self._find(request, self._metadata)
            if not self._candidates.starts and self._candidates.away is not None:
                raise self._candidates.away
        except grpc.aio.AioRpcError as away:
            raise self._loss or away from None
        if not self._candidates.starts:
            return False
        start = self._candidates.starts.pop(0)
        self._call = start(request, metadata=self._metadata, timeout=self._remaining_s())
        if self._is_cancelled:
            self._call.cancel()
        return True

    def _prepare_move(self, error: grpc.aio.AioRpcError) -> None:
        """Decide how the next attempt begins. Raises the AioRpcError of a stream that ends."""
        if self._may_move(error):
            self._num_moves += 1
            if self._progress.is_started:
                self._loss = self._loss or error
                if self._progress.obstacle:
                    self._begin_again(self._progress.obstacle)
        elif self._loss is None or self._is_cancelled:
            raise error
        elif error.code() not in _REFUSALS:
            raise self._loss from None
        else:
            self._begin_again(f"another one refuses it: {from_rpc_error(error).message}")

    def _begin_again(self, problem: str) -> None:
        """Discard what was not delivered. Raises the AioRpcError of an answer that was delivered in
        part, or refused at its beginning."""
        if self._whole_request is None or not self._progress.is_started:
            raise self._lost(problem) from None
        self._ready.clear()
        self._progress = GenerationProgress(self._whole_request)

    def _start_elsewhere(self, error: grpc.aio.AioRpcError) -> None:
        """Start the next attempt; `error` is why."""
        _log.info("a generation moves to another replica: %s", error.details())
        self._count("resumed" if self._progress.is_started else "restarted", error)
        self._candidates = None
        self._call = self._spread(
            self._progress.next_request(), metadata=self._metadata, timeout=self._remaining_s()
        )

    def _may_move(self, error: grpc.aio.AioRpcError) -> bool:
        if self._is_cancelled or self._num_moves == _MAX_MOVES:
            return False
        if is_replica_lost(error):
            return True
        if not _is_engine_death(from_rpc_error(error)):
            return False
        self._num_engines_died += 1
        return self._outlives_engines and self._num_engines_died < _MAX_ENGINES_DIED

    def _lost(self, problem: str) -> grpc.aio.AioRpcError:
        request_id = ""
        if self._loss is not None:
            request_id = request_id_of(self._loss)
            self._count("lost", self._loss)
        return to_rpc_error(GenerationLost(problem=problem.removesuffix(".")), request_id)

    def _count(self, outcome: str, error: grpc.aio.AioRpcError) -> None:
        if self._metrics is not None:
            self._metrics.moves.labels(from_rpc_error(error).reason, outcome).inc()

    def _remaining_s(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
