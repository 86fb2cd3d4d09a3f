"""Client-streaming calls that end while they are written to."""

from collections.abc import Generator
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.upload_call import UploadCall
from svc_kit.errors import InternalError, UpstreamUnavailable


class BrokenCall:
    """A call whose write fails, and which ends with a status."""

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


async def test_a_write_that_meets_a_lost_connection_finds_the_service_away() -> None:
    """gRPC calls it internal where it has not yet heard that the connection is gone."""
    call: Any = BrokenCall()
    with pytest.raises(UpstreamUnavailable, match="control"):
        await UploadCall[bytes, bytes](call, "control").write(b"x")


async def test_an_internal_error_of_the_service_stays_one() -> None:
    """A server that fails says under which id its log knows of it."""
    call: Any = BrokenCall(("x-request-id", "req_1"))
    with pytest.raises(InternalError):
        await UploadCall[bytes, bytes](call, "control").write(b"x")
