"""Adapters between protos and the domain."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from corral.control.v1 import adapter_pb2 as pb
from corral.control.v1 import adapter_service_pb2 as service_pb

from control_svc.api.convert import timestamp
from control_svc.domain.adapters import (
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
from control_svc.domain.checks import check_text
from control_svc.domain.ids import ADAPTER, is_id
from svc_kit.errors import InvalidField

_STATES: Final = {
    pb.AdapterReport.STATE_FETCHING: ReportedState.FETCHING,
    pb.AdapterReport.STATE_LOADING: ReportedState.LOADING,
    pb.AdapterReport.STATE_READY: ReportedState.READY,
    pb.AdapterReport.STATE_FAILED: ReportedState.FAILED,
}
_MAX_PROBLEM_CHARACTERS: Final = 2000


def new_adapter(header: pb.AdapterHeader) -> NewAdapter:
    """What a caller says of an adapter."""
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


def adapter_to_pb(adapter: Adapter) -> pb.Adapter:
    """An adapter as callers see it."""
    facts = adapter.facts
    return pb.Adapter(
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


def found_to_pb(found: AdapterWithReports) -> pb.Adapter:
    """The same, with its state in every engine."""
    described = adapter_to_pb(found.adapter)
    described.engines.extend(map(_report_to_pb, found.reports))
    return described


def event_to_pb(event: DesiredState | DesiredChange) -> service_pb.WatchDesiredResponse:
    """What a follower is told."""
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
    """What a frontend says, the last of each adapter. Raises InvalidField or TooLong."""
    found = {
        (report.project, report.adapter_id): _report(request, report, now)
        for report in _sound(request.reports)
    }
    return list(found.values())


def _sound(reports: Iterable[pb.AdapterReport]) -> Iterable[pb.AdapterReport]:
    """Those that can be about an adapter."""
    return (report for report in reports if is_id(report.adapter_id, ADAPTER))


def _report(
    request: service_pb.ReportAdaptersRequest, report: pb.AdapterReport, now: datetime
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


def _report_to_pb(report: AdapterReport) -> pb.AdapterReport:
    return pb.AdapterReport(
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


def _desired_to_pb(desired: DesiredAdapter) -> pb.DesiredAdapter:
    return pb.DesiredAdapter(
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
