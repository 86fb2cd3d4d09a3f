"""Servicer of `AdapterService`: convert, call, convert."""

from collections.abc import AsyncIterator

import grpc
from corral.control.v1 import adapter_service_pb2 as pb
from corral.control.v1 import adapter_service_pb2_grpc as rpc

from control_svc.api import adapter_convert as convert
from control_svc.api.convert import is_newest_first
from control_svc.domain.adapters import NewAdapter
from control_svc.domain.listing import PageRequest
from control_svc.domain.ports import Clock
from control_svc.usecases.adapters import Adapters
from control_svc.usecases.desired import Desired
from svc_kit.auth import current_principal
from svc_kit.errors import ScopeMissing
from svc_kit.scopes import Scope

Context = grpc.aio.ServicerContext[object, object]


class AdapterServicer(rpc.AdapterServiceServicer):
    """The registry of adapters over gRPC."""

    def __init__(self, adapters: Adapters, desired: Desired, clock: Clock) -> None:
        self._adapters = adapters
        self._desired = desired
        self._clock = clock

    async def CreateAdapter(
        self, request_iterator: AsyncIterator[pb.CreateAdapterRequest], context: Context
    ) -> pb.CreateAdapterResponse:
        """Register the bytes of a stream, of a file or of an operator's folder."""
        adapter = await self._adapters.create(_project(), _pieces(request_iterator))
        return pb.CreateAdapterResponse(adapter=convert.adapter_to_pb(adapter))

    async def GetAdapter(
        self, request: pb.GetAdapterRequest, context: Context
    ) -> pb.GetAdapterResponse:
        """Describe one adapter, with its state in every engine."""
        wait_s = request.wait.seconds + request.wait.nanos / 1e9  # unset is none
        found = await self._adapters.get(_project(), request.adapter, wait_s)
        return pb.GetAdapterResponse(adapter=convert.found_to_pb(found))

    async def ListAdapters(
        self, request: pb.ListAdaptersRequest, context: Context
    ) -> pb.ListAdaptersResponse:
        """List the project's adapters."""
        newest_first = is_newest_first(request.order)
        asked = PageRequest(request.page_size, request.page_token, request.after, newest_first)
        page = await self._adapters.page(_project(), asked)
        adapters = [convert.adapter_to_pb(adapter) for adapter in page.items]
        return pb.ListAdaptersResponse(adapters=adapters, next_page_token=page.next_token)

    async def UpdateAdapter(
        self, request: pb.UpdateAdapterRequest, context: Context
    ) -> pb.UpdateAdapterResponse:
        """Change scales or description."""
        changes = convert.changes_of(request)
        found = await self._adapters.update(_project(), request.adapter, changes, request.etag)
        return pb.UpdateAdapterResponse(adapter=convert.found_to_pb(found))

    async def DeleteAdapter(
        self, request: pb.DeleteAdapterRequest, context: Context
    ) -> pb.DeleteAdapterResponse:
        """Delete an adapter and its bytes."""
        adapter_id = await self._adapters.delete(_project(), request.adapter, request.etag)
        return pb.DeleteAdapterResponse(adapter_id=adapter_id)

    async def RetryAdapter(
        self, request: pb.RetryAdapterRequest, context: Context
    ) -> pb.RetryAdapterResponse:
        """Have frontends try again what failed."""
        found = await self._adapters.retry(_project(), request.adapter)
        return pb.RetryAdapterResponse(adapter=convert.found_to_pb(found))

    async def WatchDesired(
        self, request: pb.WatchDesiredRequest, context: Context
    ) -> AsyncIterator[pb.WatchDesiredResponse]:
        """What every frontend should have, until the caller has enough."""
        async for event in self._desired.watch(request.revision):
            yield convert.event_to_pb(event)

    async def ReportAdapters(
        self, request: pb.ReportAdaptersRequest, context: Context
    ) -> pb.ReportAdaptersResponse:
        """Keep what a frontend says."""
        await self._desired.report(request.frontend, convert.reports_of(request, self._clock()))
        return pb.ReportAdaptersResponse()

    async def DownloadAdapter(
        self, request: pb.DownloadAdapterRequest, context: Context
    ) -> AsyncIterator[pb.DownloadAdapterResponse]:
        """Send the bytes of a registered digest."""
        async for chunk in self._desired.download(request.sha256):
            yield pb.DownloadAdapterResponse(chunk=chunk)


def _project() -> str:
    return current_principal().project


async def _pieces(
    requests: AsyncIterator[pb.CreateAdapterRequest],
) -> AsyncIterator[NewAdapter | bytes]:
    """The pieces of an adapter. Raises ScopeMissing for a path that is not an operator's."""
    async for request in requests:
        if not request.HasField("header"):
            yield request.chunk
            continue
        if request.header.path and not current_principal().has(Scope.ADMIN):
            raise ScopeMissing(scope=Scope.ADMIN, method="CreateAdapter with a path")
        yield convert.new_adapter(request.header)
