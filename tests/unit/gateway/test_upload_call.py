"""Client-streaming calls that fail during a write."""

from collections.abc import Generator
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.calls import UploadCall
from svc_kit.errors import InternalError, UpstreamUnavailable


class BrokenCall:
    """A call whose writes and reply fail with status INTERNAL."""

    def __init__(self, *trailers: tuple[str, str]) -> None:
        self._status = grpc.aio.AioRpcError(
            grpc.StatusCode.INTERNAL,
            grpc.aio.Metadata(),
            grpc.aio.Metadata(*trailers),
            details="Failed 'execute_batch'",
        )

    async def write(self, message: bytes) -> None:
        raise self._status

    def __await__(self) -> Generator[Any, None, bytes]:
        raise self._status
        yield


async def test_a_write_on_a_lost_connection_raises_upstream_unavailable() -> None:
    """gRPC reports it as INTERNAL."""
    call: Any = BrokenCall()
    with pytest.raises(UpstreamUnavailable, match="control"):
        await UploadCall[bytes, bytes](call, "control").write(b"x")


async def test_an_internal_error_of_the_service_is_raised() -> None:
    """It has a request id."""
    call: Any = BrokenCall(("x-request-id", "req_1"))
    with pytest.raises(InternalError):
        await UploadCall[bytes, bytes](call, "control").write(b"x")
