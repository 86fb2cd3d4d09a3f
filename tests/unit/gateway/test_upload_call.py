"""Client-streaming calls that fail during a write."""

from collections.abc import Callable, Generator
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.calls import UploadCall
from svc_kit.errors import InternalError, StorageFailed, UpstreamUnavailable
from svc_kit.errors.status import to_status


class BrokenCall:
    """A call whose writes and reply fail with status INTERNAL; `ended` is the status before."""

    def __init__(
        self, *trailers: tuple[str, str], ended: grpc.aio.AioRpcError | None = None
    ) -> None:
        self._status = grpc.aio.AioRpcError(
            grpc.StatusCode.INTERNAL,
            grpc.aio.Metadata(),
            grpc.aio.Metadata(*trailers),
            details="Failed 'execute_batch'",
        )
        self._ended = ended or self._status
        self._on_done: Callable[[Any], None] = lambda _: None

    def add_done_callback(self, on_done: Callable[[Any], None]) -> None:
        self._on_done = on_done

    async def write(self, message: bytes) -> None:
        self._on_done(self)
        raise self._status

    async def code(self) -> grpc.StatusCode:
        return self._ended.code()

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return self._ended.trailing_metadata()

    async def details(self) -> str | None:
        return self._ended.details()

    def __await__(self) -> Generator[Any, None, bytes]:
        raise self._status
        yield


async def test_a_write_on_a_lost_connection_raises_upstream_unavailable() -> None:
    """gRPC reports it as INTERNAL."""
    call: Any = BrokenCall()
    with pytest.raises(UpstreamUnavailable, match="control"):
        await UploadCall[bytes, bytes](call, "control").write(b"x")


async def test_an_internal_error_of_the_service_is_raised() -> None:
    call: Any = BrokenCall(("x-request-id", "req_1"))
    with pytest.raises(InternalError):
        await UploadCall[bytes, bytes](call, "control").write(b"x")


async def test_the_error_of_the_service_is_raised_if_a_write_fails_after_it() -> None:
    """gRPC replaces it, so that a full disk would be a service that cannot be reached."""
    wire = to_status(StorageFailed(problem="disk full"), "req_1")
    trailers = grpc.aio.Metadata(*wire.trailing_metadata)
    ended = grpc.aio.AioRpcError(wire.code, grpc.aio.Metadata(), trailers, wire.details)
    call: Any = BrokenCall(ended=ended)
    with pytest.raises(StorageFailed, match="disk full"):
        await UploadCall[bytes, bytes](call, "control").write(b"x")
