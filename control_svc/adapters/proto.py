"""Mappings of adapters, their reports and the desired state to protos."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from corral.control.v1 import adapter_pb2
from corral.control.v1 import adapter_service_pb2 as adapter_pb

from control_svc.adapters.model import (
    DEFAULT_SCALE,
    Adapter,
    AdapterReport,
    AdapterWithReports,
    DesiredAdapter,
    DesiredChange,
    DesiredState,
    Frontend,
    NewAdapter,
)
from control_svc.base import ids
from control_svc.base.proto import changed_values
from control_svc.base.validation import check_text
from model_files.adapter_facts import AdapterFacts
from svc_kit.auth.principal import current_principal
from svc_kit.auth.scopes import Scope
from svc_kit.errors import ScopeMissing
from svc_kit.rpc.message_mapper import MessageMapper

_MAX_PROBLEM_CHARACTERS: Final = 2000
_MAX_REVISION: Final = 2**63 - 1
NEW_ADAPTER: Final = MessageMapper(NewAdapter, adapter_pb2.AdapterHeader)
ADAPTER: Final = MessageMapper(
    Adapter,
    adapter_pb2.Adapter,
    flat={"facts": MessageMapper(AdapterFacts, adapter_pb2.Adapter, is_part=True)},
    only_domain=["blob_key", "attempt", "revision"],
    only_message=["engines", "frontend_count", "ready_frontend_count"],
)
_REPORT: Final = MessageMapper(AdapterReport, adapter_pb2.AdapterReport)
_DESIRED: Final = MessageMapper(DesiredAdapter, adapter_pb2.DesiredAdapter)


def adapter_changes(request: adapter_pb.UpdateAdapterRequest) -> dict[str, Any]:
    """The changes of an update, by field. Raises InvalidField for a wrong mask."""
    changes = changed_values(request, "adapter", "etag")
    if "default_scale" in changes and not request.HasField("default_scale"):
        changes["default_scale"] = DEFAULT_SCALE
    return changes


def adapter_with_reports_to_pb(adapter: AdapterWithReports) -> adapter_pb2.Adapter:
    """Convert an adapter with its state in every engine."""
    return ADAPTER.to_message(
        adapter.adapter,
        engines=map(_REPORT.to_message, adapter.reports),
        frontend_count=adapter.frontend_count,
        ready_frontend_count=adapter.ready_frontend_count,
    )


def event_to_pb(event: DesiredState | DesiredChange) -> adapter_pb.WatchDesiredResponse:
    revision = str(event.revision)
    if isinstance(event, DesiredState):
        desired = map(_DESIRED.to_message, event.adapters.values())
        state = adapter_pb.DesiredState(adapters=desired)
        return adapter_pb.WatchDesiredResponse(state=state, revision=revision)
    change = adapter_pb.DesiredChange(
        adapters=map(_DESIRED.to_message, event.adapters), removed_ids=event.removed_ids
    )
    return adapter_pb.WatchDesiredResponse(change=change, revision=revision)


def frontend_of(request: adapter_pb.ReportAdaptersRequest, now: datetime) -> Frontend:
    revision = int(request.revision) if request.revision.isdecimal() else 0
    return Frontend(
        frontend=request.frontend,
        address=request.address,
        revision=min(revision, _MAX_REVISION),
        reported_at=now,
    )


def adapter_reports(
    request: adapter_pb.ReportAdaptersRequest, now: datetime
) -> list[AdapterReport]:
    """Convert the last report about each adapter, without those with malformed adapter ids.

    Raises InvalidField or TooLong.
    """
    reports = {
        (report.project, report.adapter_id): _report(request, report, now)
        for report in request.reports
        if ids.is_id(report.adapter_id, ids.ADAPTER)
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


def wait_s(request: adapter_pb.GetAdapterRequest | adapter_pb.DeleteAdapterRequest) -> float:
    """How many seconds a request waits."""
    return request.wait.seconds + request.wait.nanos / 1e9


async def read_pieces(
    requests: AsyncIterator[adapter_pb.CreateAdapterRequest],
) -> AsyncIterator[NewAdapter | bytes]:
    """Convert the stream. Raises ScopeMissing for a path without the scope `admin`."""
    async for request in requests:
        if not request.HasField("header"):
            yield request.chunk
            continue
        if request.header.path and not current_principal().has(Scope.ADMIN):
            raise ScopeMissing(scope=Scope.ADMIN, method="CreateAdapter with a path")
        yield NEW_ADAPTER.from_message(request.header)
