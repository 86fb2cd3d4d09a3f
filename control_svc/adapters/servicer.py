"""The gRPC servicer of adapters and its conversion."""

from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import Final

import grpc
from corral.control.v1 import adapter_pb2
from corral.control.v1 import adapter_service_pb2 as adapter_pb
from corral.control.v1 import adapter_service_pb2 as service_pb
from corral.control.v1 import adapter_service_pb2_grpc as rpc

from control_svc.adapters.model import (
    Adapter,
    AdapterChanges,
    AdapterReport,
    AdapterWithReports,
    DesiredAdapter,
    DesiredChange,
    DesiredState,
    NewAdapter,
    ReportedState,
)
from control_svc.adapters.service import Adapters
from control_svc.adapters.sync import AdapterSync
from control_svc.base.ids import ADAPTER, is_id
from control_svc.base.pagination import PageRequest
from control_svc.base.proto import is_newest_first, timestamp
from control_svc.base.validation import check_text
from control_svc.db.transaction import Clock
from svc_kit.auth.principal import current_principal
from svc_kit.auth.scopes import Scope
from svc_kit.errors import InvalidField, ScopeMissing

_STATES: Final = {
    adapter_pb2.AdapterReport.STATE_FETCHING: ReportedState.FETCHING,
    adapter_pb2.AdapterReport.STATE_LOADING: ReportedState.LOADING,
    adapter_pb2.AdapterReport.STATE_READY: ReportedState.READY,
    adapter_pb2.AdapterReport.STATE_FAILED: ReportedState.FAILED,
}
_MAX_PROBLEM_CHARACTERS: Final = 2000


def new_adapter(header: adapter_pb2.AdapterHeader) -> NewAdapter:
    """Convert the request to register an adapter."""
    return NewAdapter(
        name=header.name,
        model=header.model,
        description=header.description,
        default_scale=header.default_scale if header.HasField("default_scale") else 1.0,
        file_id=header.file_id,
        path=header.path,
        sha256=header.sha256,
        replace=header.replace,
        request_id=header.request_id,
    )


def changes_of(request: service_pb.UpdateAdapterRequest) -> AdapterChanges:
    """What a caller changes."""
    fields = ("default_scale", "standing_scale", "description")
    return AdapterChanges(
        **{field: getattr(request, field) for field in fields if request.HasField(field)}
    )


def adapter_to_pb(adapter: Adapter) -> adapter_pb2.Adapter:
    """An adapter as callers see it."""
    facts = adapter.facts
    return adapter_pb2.Adapter(
        id=adapter.id,
        name=adapter.name,
        model=adapter.model,
        description=adapter.description,
        default_scale=adapter.default_scale,
        standing_scale=adapter.standing_scale,
        sha256=adapter.sha256,
        file_bytes=adapter.file_bytes,
        architecture=facts.architecture,
        base_model=facts.base_model,
        title=facts.title,
        rank=facts.rank,
        size_bytes=facts.size_bytes,
        create_time=timestamp(adapter.created_at),
        update_time=timestamp(adapter.updated_at),
        etag=adapter.etag,
    )


def found_to_pb(found: AdapterWithReports) -> adapter_pb2.Adapter:
    """The same, with its state in every engine."""
    described = adapter_to_pb(found.adapter)
    described.engines.extend(map(_report_to_pb, found.reports))
    return described


def event_to_pb(event: DesiredState | DesiredChange) -> service_pb.WatchDesiredResponse:
    """Convert a change of the desired state."""
    revision = str(event.revision)
    if isinstance(event, DesiredState):
        desired = map(_desired_to_pb, event.adapters.values())
        state = service_pb.DesiredState(adapters=desired)
        return service_pb.WatchDesiredResponse(state=state, revision=revision)
    change = service_pb.DesiredChange(
        adapters=map(_desired_to_pb, event.adapters), removed_ids=event.removed_ids
    )
    return service_pb.WatchDesiredResponse(change=change, revision=revision)


def reports_of(request: service_pb.ReportAdaptersRequest, now: datetime) -> list[AdapterReport]:
    """Convert reports, the last of each adapter. Raises InvalidField or TooLong."""
    found = {
        (report.project, report.adapter_id): _report(request, report, now)
        for report in _sound(request.reports)
    }
    return list(found.values())


def _sound(reports: Iterable[adapter_pb2.AdapterReport]) -> Iterable[adapter_pb2.AdapterReport]:
    """Those that can be about an adapter."""
    return (report for report in reports if is_id(report.adapter_id, ADAPTER))


def _report(
    request: service_pb.ReportAdaptersRequest, report: adapter_pb2.AdapterReport, now: datetime
) -> AdapterReport:
    if report.state not in _STATES:
        raise InvalidField(field="reports.state", problem=f"{report.state} is no state")
    for field in ("project", "model", "reason", "sha256"):
        if text := getattr(report, field):
            check_text(f"reports.{field}", text)
    if request.address:
        check_text("address", request.address)
    problem = report.problem.replace("\0", "")[:_MAX_PROBLEM_CHARACTERS]
    return AdapterReport(
        adapter_id=report.adapter_id,
        project=report.project,
        frontend=request.frontend,
        address=request.address,
        model=report.model,
        state=_STATES[report.state],
        reason=report.reason[:64],
        problem=problem,
        sha256=report.sha256[:64],
        reported_at=now,
    )


def _report_to_pb(report: AdapterReport) -> adapter_pb2.AdapterReport:
    return adapter_pb2.AdapterReport(
        adapter_id=report.adapter_id,
        project=report.project,
        frontend=report.frontend,
        address=report.address,
        model=report.model,
        state=f"STATE_{report.state.name}",
        reason=report.reason,
        problem=report.problem,
        sha256=report.sha256,
        report_time=timestamp(report.reported_at),
    )


def _desired_to_pb(desired: DesiredAdapter) -> adapter_pb2.DesiredAdapter:
    return adapter_pb2.DesiredAdapter(
        id=desired.id,
        project=desired.project,
        name=desired.name,
        model=desired.model,
        sha256=desired.sha256,
        file_bytes=desired.file_bytes,
        default_scale=desired.default_scale,
        standing_scale=desired.standing_scale,
        attempt=desired.attempt,
    )


Context = grpc.aio.ServicerContext[object, object]


class AdapterServicer(rpc.AdapterServiceServicer):
    """The registry of adapters over gRPC."""

    def __init__(self, adapters: Adapters, desired: AdapterSync, clock: Clock) -> None:
        self._adapters = adapters
        self._desired = desired
        self._clock = clock

    async def CreateAdapter(
        self, request_iterator: AsyncIterator[adapter_pb.CreateAdapterRequest], context: Context
    ) -> adapter_pb.CreateAdapterResponse:
        """Register the bytes of a stream, of a file or of an operator's folder."""
        adapter = await self._adapters.create(_project(), _pieces(request_iterator))
        return adapter_pb.CreateAdapterResponse(adapter=adapter_to_pb(adapter))

    async def GetAdapter(
        self, request: adapter_pb.GetAdapterRequest, context: Context
    ) -> adapter_pb.GetAdapterResponse:
        """Describe one adapter, with its state in every engine."""
        wait_s = request.wait.seconds + request.wait.nanos / 1e9  # unset is none
        found = await self._adapters.get(_project(), request.adapter, wait_s)
        return adapter_pb.GetAdapterResponse(adapter=found_to_pb(found))

    async def ListAdapters(
        self, request: adapter_pb.ListAdaptersRequest, context: Context
    ) -> adapter_pb.ListAdaptersResponse:
        """List the project's adapters."""
        newest_first = is_newest_first(request.order)
        wanted = PageRequest(request.page_size, request.page_token, request.after, newest_first)
        page = await self._adapters.page(_project(), wanted)
        adapters = [adapter_to_pb(adapter) for adapter in page.items]
        return adapter_pb.ListAdaptersResponse(adapters=adapters, next_page_token=page.next_token)

    async def UpdateAdapter(
        self, request: adapter_pb.UpdateAdapterRequest, context: Context
    ) -> adapter_pb.UpdateAdapterResponse:
        """Change scales or description."""
        changes = changes_of(request)
        found = await self._adapters.update(_project(), request.adapter, changes, request.etag)
        return adapter_pb.UpdateAdapterResponse(adapter=found_to_pb(found))

    async def DeleteAdapter(
        self, request: adapter_pb.DeleteAdapterRequest, context: Context
    ) -> adapter_pb.DeleteAdapterResponse:
        """Delete an adapter and its bytes."""
        adapter_id = await self._adapters.delete(_project(), request.adapter, request.etag)
        return adapter_pb.DeleteAdapterResponse(adapter_id=adapter_id)

    async def RetryAdapter(
        self, request: adapter_pb.RetryAdapterRequest, context: Context
    ) -> adapter_pb.RetryAdapterResponse:
        """Have frontends try again what failed."""
        found = await self._adapters.retry(_project(), request.adapter)
        return adapter_pb.RetryAdapterResponse(adapter=found_to_pb(found))

    async def WatchDesired(
        self, request: adapter_pb.WatchDesiredRequest, context: Context
    ) -> AsyncIterator[adapter_pb.WatchDesiredResponse]:
        """What every frontend should have, until the caller has enough."""
        async for event in self._desired.watch(request.revision):
            yield event_to_pb(event)

    async def ReportAdapters(
        self, request: adapter_pb.ReportAdaptersRequest, context: Context
    ) -> adapter_pb.ReportAdaptersResponse:
        """Store the reports of a frontend."""
        await self._desired.report(request.frontend, reports_of(request, self._clock()))
        return adapter_pb.ReportAdaptersResponse()

    async def DownloadAdapter(
        self, request: adapter_pb.DownloadAdapterRequest, context: Context
    ) -> AsyncIterator[adapter_pb.DownloadAdapterResponse]:
        """Send the bytes of a registered digest."""
        async for chunk in self._desired.download(request.sha256):
            yield adapter_pb.DownloadAdapterResponse(chunk=chunk)


def _project() -> str:
    return current_principal().project


async def _pieces(
    requests: AsyncIterator[adapter_pb.CreateAdapterRequest],
) -> AsyncIterator[NewAdapter | bytes]:
    """The pieces of an adapter. Raises ScopeMissing for a path that is not an operator's."""
    async for request in requests:
        if not request.HasField("header"):
            yield request.chunk
            continue
        if request.header.path and not current_principal().has(Scope.ADMIN):
            raise ScopeMissing(scope=Scope.ADMIN, method="CreateAdapter with a path")
        yield new_adapter(request.header)
