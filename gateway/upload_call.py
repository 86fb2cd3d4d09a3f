"""Client-streaming calls: a write waits until the service has room, so a slow disk slows the client
down.
"""

import asyncio
from typing import Any, Generic, TypeVar

import grpc.aio

from svc_kit.errors import DomainError, InternalError, UpstreamUnavailable
from svc_kit.rpc.client import translate_errors

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class UploadCall(Generic[Request, Answer]):
    """A call that takes many messages and is answered by one.

    After `stop(error)` the call is cancelled at the service, and whoever writes or waits here gets
    `error`.
    """

    def __init__(self, call: grpc.aio.StreamUnaryCall[Request, Answer], service: str) -> None:
        self._call: Any = call
        self._service = service
        self._stopped: DomainError | None = None

    async def write(self, message: Request) -> None:
        """Send a message. Raises the DomainError that the service has refused the call with."""
        try:
            await self._call.write(message)
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            # The service has answered before the end, and it does so only to refuse. What it said
            # comes with the answer: a write that fails knows nothing of it.
            await self._refusal()
        except asyncio.CancelledError:
            self._raise_stopped()
            raise

    async def finish(self) -> Answer:
        """End the stream and wait for the reply. Raises the service's DomainErrors."""
        try:
            await self._call.done_writing()
        except asyncio.CancelledError:
            self._raise_stopped()
            raise
        return await self._answer()

    def stop(self, error: DomainError) -> None:
        """Cancel the call; after its end it does nothing."""
        if self._stopped is None:
            self._stopped = error
            self._call.cancel()

    async def _refusal(self) -> None:
        try:
            await self._answer()
        except InternalError as error:
            if error.request_id:
                raise
            # No server said so: gRPC does, of a write that met the end of a connection before it
            # knew of that end.
            raise UpstreamUnavailable(service=self._service) from error

    async def _answer(self) -> Answer:
        try:
            with translate_errors(self._service):
                answer: Answer = await self._call
                return answer
        except asyncio.CancelledError:
            self._raise_stopped()
            raise

    def _raise_stopped(self) -> None:
        """A stopped call looks like a cancelled task."""
        task = asyncio.current_task()
        if self._stopped is not None and (task is None or not task.cancelling()):
            raise self._stopped from None
