"""The standard health service: `Check`, `List` and `Watch`.

The servicer of grpcio holds a lock while writing to a watcher, so one watcher that does not read
would block all others.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

from grpc_health.v1 import health_pb2 as pb  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2_grpc as pb_grpc

from svc_kit.errors import NotFound

SERVICE_NAME: Final[str] = pb.DESCRIPTOR.services_by_name["Health"].full_name
OVERALL: Final = ""
"""The service name that stands for the whole server."""
_SERVING = pb.HealthCheckResponse.SERVING
_NOT_SERVING = pb.HealthCheckResponse.NOT_SERVING
_SERVICE_UNKNOWN = pb.HealthCheckResponse.SERVICE_UNKNOWN


class HealthServicer(pb_grpc.HealthServicer):  # type: ignore[misc]
    """The health of each service, initially NOT_SERVING."""

    def __init__(self, service_names: Iterable[str]) -> None:
        self._is_serving = dict.fromkeys([OVERALL, *service_names], False)
        self._changed = asyncio.Event()

    def set_serving(self, is_serving: bool, service: str | None = None) -> None:
        """Set the status of one service, or of all services and the server; notify watchers."""
        for name in self._is_serving if service is None else [service]:
            self._is_serving[name] = is_serving
        self._changed.set()
        self._changed = asyncio.Event()

    def is_serving(self, service: str = OVERALL) -> bool:
        return self._is_serving.get(service, False)

    async def Check(self, request: pb.HealthCheckRequest, context: Any) -> pb.HealthCheckResponse:
        """The status of one service. Raises NOT_FOUND for a service not served here."""
        status = self._status(request.service)
        if status == _SERVICE_UNKNOWN:
            raise NotFound.with_reason(
                reason="SERVICE_UNKNOWN",
                message=f"The service '{request.service}' is not served here.",
                metadata={"service": request.service},
            )
        return pb.HealthCheckResponse(status=status)

    async def List(self, request: pb.HealthListRequest, context: Any) -> pb.HealthListResponse:
        """The status of every service."""
        statuses = {n: pb.HealthCheckResponse(status=self._status(n)) for n in self._is_serving}
        return pb.HealthListResponse(statuses=statuses)

    async def Watch(
        self, request: pb.HealthCheckRequest, context: Any
    ) -> AsyncIterator[pb.HealthCheckResponse]:
        """The status of one service, now and on each change, until drain or disconnection."""
        last = None
        while True:
            changed, status = self._changed, self._status(request.service)
            if status != last:
                last = status
                yield pb.HealthCheckResponse(status=status)
            else:
                await changed.wait()

    def _status(self, service: str) -> int:
        is_serving = self._is_serving.get(service)
        if is_serving is None:
            return int(_SERVICE_UNKNOWN)
        return int(_SERVING if is_serving else _NOT_SERVING)
