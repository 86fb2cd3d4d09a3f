"""Client-streaming gRPC calls. Writes wait for gRPC flow control, so a slow service throttles the
client.
"""

import asyncio
from typing import Generic, TypeVar, cast

import grpc.aio

from gateway.calls import StoppableCall
from svc_kit.errors import InternalError, UpstreamUnavailable
from svc_kit.rpc.client import translate_errors

Request = TypeVar("Request")
Reply = TypeVar("Reply")


class UploadCall(StoppableCall, Generic[Request, Reply]):
    """A call with many request messages and one reply."""

    async def write(self, message: Request) -> None:
        """Send a message. Raises the DomainError with which the service rejected the call."""
        try:
            await self._call.write(message)
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            # The service has rejected the call. Its error comes with the reply, not with the write.
            await self._raise_rejection()
        except asyncio.CancelledError:
            self._raise_if_stopped()
            raise

    async def finish(self) -> Reply:
        """End the stream and wait for the reply. Raises the service's DomainErrors."""
        try:
            await self._call.done_writing()
        except asyncio.CancelledError:
            self._raise_if_stopped()
            raise
        return await self._read_reply()

    async def _raise_rejection(self) -> None:
        try:
            await self._read_reply()
        except InternalError as error:
            if error.request_id:
                raise
            # Without a request id the error is gRPC's: the connection was lost during the write.
            raise UpstreamUnavailable(service=self._service) from error

    async def _read_reply(self) -> Reply:
        try:
            with translate_errors(self._service):
                return cast(Reply, await self._call)
        except asyncio.CancelledError:
            self._raise_if_stopped()
            raise
