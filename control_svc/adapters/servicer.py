"""The gRPC servicer of adapters, and its conversion from and to protos."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from typing import Final

from corral.control.v1 import adapter_pb2
from corral.control.v1 import adapter_service_pb2 as adapter_pb
from corral.control.v1 import adapter_service_pb2_grpc as rpc

from control_svc.adapters.model import (
    DEFAULT_SCALE,
    Adapter,
    AdapterChanges,
    AdapterReport,
    AdapterWithReports,
    DesiredAdapter,
    DesiredChange,
    DesiredState,
    Frontend,
    NewAdapter,
)
from control_svc.adapters.service import Adapters
from control_svc.adapters.sync import AdapterSync
from control_svc.base.ids import ADAPTER, is_id
from control_svc.base.proto import Context, caller_project, changed_fields, page_request
from control_svc.base.validation import check_text
from control_svc.db.transaction import Clock
from model_files.adapter_facts import AdapterFacts
from svc_kit.auth.principal import current_principal
from svc_kit.auth.scopes import Scope
from svc_kit.errors import ScopeMissing
from svc_kit.rpc.message_mapper import MessageMapper

_MAX_PROBLEM_CHARACTERS: Final = 2000
_MAX_REVISION: Final = 2**63 - 1


_NEW_ADAPTER: Final = MessageMapper(NewAdapter, adapter_pb2.AdapterHeader)
_ADAPTER: Final = MessageMapper(
    Adapter,
    adapter_pb2.Adapter,
    flat={"facts": MessageMapper(AdapterFacts, adapter_pb2.Adapter, is_part=True)},
    only_domain=["blob_key", "attempt", "revision"],
    only_message=["engines", "frontend_count", "ready_frontend_count"],
)
_REPORT: Final = MessageMapper(AdapterReport, adapter_pb2.AdapterReport)
_DESIRED: Final = MessageMapper(DesiredAdapter, adapter_pb2.DesiredAdapter)


def adapter_changes(request: adapter_pb.UpdateAdapterRequest) -> AdapterChanges:
    """Convert an update. Raises InvalidField for a wrong mask."""
    changed = changed_fields(request, ("default_scale", "standing_scale", "description"))
    changes = AdapterChanges(**{field: getattr(request, field) for field in changed})
    if "default_scale" in changed and not request.HasField("default_scale"):
        return replace(changes, default_scale=DEFAULT_SCALE)
    return changes


def adapter_with_reports_to_pb(adapter: AdapterWithReports) -> adapter_pb2.Adapter:
    """Convert an adapter with its state in every engine."""
    return _ADAPTER.to_message(
        adapter.adapter,
        engines=map(_REPORT.to_message, adapter.reports),
        frontend_count=adapter.frontend_count,
        ready_frontend_count=adapter.ready_frontend_count,
    )


def event_to_pb(event: DesiredState | DesiredChange) -> adapter_pb.WatchDesiredResponse:
    """Convert the desired state or a change of it."""
    revision = str(event.revision)
    if isinstance(event, DesiredState):
        desired = map(_DESIRED.to_message, event.adapters.values())
        state = adapter_pb.DesiredState(adapters=desired)
        return adapter_pb.WatchDesiredResponse(state=state, revision=revision)
    change = adapter_pb.DesiredChange(
        adapters=map(_DESIRED.to_message, event.adapters), removed_ids=event.removed_ids
    )
    return adapter_pb.WatchDesiredResponse(change=change, revision=revision)


def adapter_reports(
    request: adapter_pb.ReportAdaptersRequest, now: datetime
) -> list[AdapterReport]:
    """Convert the last report about each adapter, without those with malformed adapter ids.

    Raises InvalidField or TooLong.
    """
    reports = {
        (report.project, report.adapter_id): _report(request, report, now)
        for report in request.reports
        if is_id(report.adapter_id, ADAPTER)
    }
    return list(reports.values())


def _report(
    request: adapter_pb.ReportAdaptersRequest, message: adapter_pb2.AdapterReport, now: datetime
) -> AdapterReport:
    for field in ("project", "model", "reason", "sha256"):
        if text := getattr(message, field):
            check_text(f"reports.{field}", text)
    if request.address:
        check_text("address", request.address)
    return replace(
        _REPORT.from_message(message, "reports"),
        frontend=request.frontend,
        address=request.address,
        reason=message.reason[:64],
        problem=message.problem.replace("\0", "")[:_MAX_PROBLEM_CHARACTERS],
        sha256=message.sha256[:64],
        reported_at=now,
    )


class AdapterServicer(rpc.AdapterServiceServicer):
    """Adapters over gRPC."""

    def __init__(self, adapters: Adapters, sync: AdapterSync, clock: Clock) -> None:
        self._adapters = adapters
        self._sync = sync
        self._clock = clock

    async def CreateAdapter(
        self, request_iterator: AsyncIterator[adapter_pb.CreateAdapterRequest], context: Context
    ) -> adapter_pb.CreateAdapterResponse:
        """Register an adapter from a stream, a file or an operator's folder."""
        adapter = await self._adapters.create(caller_project(), _pieces(request_iterator))
        return adapter_pb.CreateAdapterResponse(adapter=_ADAPTER.to_message(adapter))

    async def GetAdapter(
        self, request: adapter_pb.GetAdapterRequest, context: Context
    ) -> adapter_pb.GetAdapterResponse:
        """Get an adapter with its state in every engine."""
        adapter = await self._adapters.get(caller_project(), request.adapter, _wait_s(request))
        return adapter_pb.GetAdapterResponse(adapter=adapter_with_reports_to_pb(adapter))

    async def ListAdapters(
        self, request: adapter_pb.ListAdaptersRequest, context: Context
    ) -> adapter_pb.ListAdaptersResponse:
        """List the project's adapters."""
        page = await self._adapters.page(caller_project(), page_request(request, 0))
        adapters = map(_ADAPTER.to_message, page.items)
        return adapter_pb.ListAdaptersResponse(adapters=adapters, next_page_token=page.next_token)

    async def UpdateAdapter(
        self, request: adapter_pb.UpdateAdapterRequest, context: Context
    ) -> adapter_pb.UpdateAdapterResponse:
        """Change the scales or the description of an adapter."""
        changes = adapter_changes(request)
        adapter = await self._adapters.update(
            caller_project(), request.adapter, changes, request.etag
        )
        return adapter_pb.UpdateAdapterResponse(adapter=adapter_with_reports_to_pb(adapter))

    async def DeleteAdapter(
        self, request: adapter_pb.DeleteAdapterRequest, context: Context
    ) -> adapter_pb.DeleteAdapterResponse:
        """Delete an adapter and its bytes."""
        deleted = await self._adapters.delete(
            caller_project(), request.adapter, request.etag, _wait_s(request)
        )
        return adapter_pb.DeleteAdapterResponse(
            adapter_id=deleted.id,
            frontend_count=deleted.frontend_count,
            pending_frontend_count=deleted.pending_frontend_count,
        )

    async def RetryAdapter(
        self, request: adapter_pb.RetryAdapterRequest, context: Context
    ) -> adapter_pb.RetryAdapterResponse:
        """Make frontends retry a failed load."""
        adapter = await self._adapters.retry(caller_project(), request.adapter)
        return adapter_pb.RetryAdapterResponse(adapter=adapter_with_reports_to_pb(adapter))

    async def WatchDesired(
        self, request: adapter_pb.WatchDesiredRequest, context: Context
    ) -> AsyncIterator[adapter_pb.WatchDesiredResponse]:
        """Stream the desired state and its changes, until the client cancels."""
        async for event in self._sync.watch(request.revision):
            yield event_to_pb(event)

    async def ReportAdapters(
        self, request: adapter_pb.ReportAdaptersRequest, context: Context
    ) -> adapter_pb.ReportAdaptersResponse:
        """Replace the reports of a frontend."""
        now = self._clock()
        revision = int(request.revision) if request.revision.isdecimal() else 0
        frontend = Frontend(
            frontend=request.frontend,
            address=request.address,
            revision=min(revision, _MAX_REVISION),
            reported_at=now,
        )
        await self._sync.report(frontend, adapter_reports(request, now))
        return adapter_pb.ReportAdaptersResponse()

    async def DownloadAdapter(
        self, request: adapter_pb.DownloadAdapterRequest, context: Context
    ) -> AsyncIterator[adapter_pb.DownloadAdapterResponse]:
        """Stream the bytes of a registered adapter."""
        async for chunk in self._sync.download(request.sha256):
            yield adapter_pb.DownloadAdapterResponse(chunk=chunk)


def _wait_s(request: adapter_pb.GetAdapterRequest | adapter_pb.DeleteAdapterRequest) -> float:
    return request.wait.seconds + request.wait.nanos / 1e9


async def _pieces(
    requests: AsyncIterator[adapter_pb.CreateAdapterRequest],
) -> AsyncIterator[NewAdapter | bytes]:
    """Convert the stream. Raises ScopeMissing for a path without the scope `admin`."""
    async for request in requests:
        if not request.HasField("header"):
            yield request.chunk
            continue
        if request.header.path and not current_principal().has(Scope.ADMIN):
            raise ScopeMissing(scope=Scope.ADMIN, method="CreateAdapter with a path")
        yield _NEW_ADAPTER.from_message(request.header)
