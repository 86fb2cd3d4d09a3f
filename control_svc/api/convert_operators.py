"""Protos and the domain meet here too: what operators look after, that is projects, keys, usage."""

from datetime import UTC, datetime
from typing import Final

from corral.control.v1 import key_service_pb2, project_service_pb2, usage_service_pb2
from corral.inference.v1 import generation_pb2
from google.protobuf.timestamp_pb2 import Timestamp

from control_svc.api.convert import optional_timestamp, timestamp
from control_svc.domain.keys import ApiKey, NewKey
from control_svc.domain.projects import Project
from control_svc.domain.usage import (
    Counts,
    Period,
    UsagePlace,
    UsageQuery,
    UsageReport,
    UsageSum,
    hour_of,
)
from control_svc.usecases.keys import Verified
from svc_kit.errors import InvalidField
from svc_kit.principal import DEFAULT_PROJECT, Priority
from svc_kit.scopes import Scope

_SCOPE: Final = "KEY_SCOPE_"
_PRIORITY: Final = "PRIORITY_"
_VERDICTS: Final = {
    "API_KEY_INVALID": key_service_pb2.VerifyKeyResponse.VERDICT_UNKNOWN,
    "API_KEY_EXPIRED": key_service_pb2.VerifyKeyResponse.VERDICT_EXPIRED,
    "API_KEY_REVOKED": key_service_pb2.VerifyKeyResponse.VERDICT_REVOKED,
    "PROJECT_ARCHIVED": key_service_pb2.VerifyKeyResponse.VERDICT_PROJECT_ARCHIVED,
}
_PERIODS: Final = {
    usage_service_pb2.ListUsageRequest.PERIOD_UNSPECIFIED: Period.DAY,
    usage_service_pb2.ListUsageRequest.PERIOD_DAY: Period.DAY,
    usage_service_pb2.ListUsageRequest.PERIOD_HOUR: Period.HOUR,
}


def project_to_pb(project: Project) -> project_service_pb2.Project:
    """A project as operators see it."""
    archived_at = project.archived_at
    return project_service_pb2.Project(
        id=project.id,
        display_name=project.display_name,
        state="STATE_ACTIVE" if archived_at is None else "STATE_ARCHIVED",
        create_time=timestamp(project.created_at),
        archive_time=optional_timestamp(archived_at),
    )


def new_key(request: key_service_pb2.CreateKeyRequest) -> NewKey:
    """What an operator says of a key. Raises InvalidField for what this release does not know."""
    scopes = {_scope(number, value) for number, value in enumerate(request.scopes)}
    return NewKey(
        project=request.project_id or DEFAULT_PROJECT,
        name=request.name,
        scopes=frozenset(scopes or {Scope.INFERENCE.value}),
        priority=_priority(request.priority),
        expires_at=_time(request, "expire_time"),
        request_id=request.request_id,
    )


def key_to_pb(key: ApiKey) -> key_service_pb2.ApiKey:
    """A key as operators and services see it."""
    return key_service_pb2.ApiKey(
        id=key.id,
        project=key.project,
        name=key.name,
        prefix=key.prefix,
        scopes=[f"{_SCOPE}{scope.upper()}" for scope in sorted(key.scopes)],
        priority=f"{_PRIORITY}{key.priority.name}",
        create_time=timestamp(key.created_at),
        expire_time=optional_timestamp(key.expires_at),
        last_use_time=optional_timestamp(key.last_used_at),
        revoke_time=optional_timestamp(key.revoked_at),
    )


def verdict_to_pb(verified: Verified) -> key_service_pb2.VerifyKeyResponse:
    """What services are told of a key."""
    key, refusal = verified
    return key_service_pb2.VerifyKeyResponse(
        verdict=key_service_pb2.VerifyKeyResponse.VERDICT_VALID
        if refusal is None
        else _VERDICTS[refusal.reason],
        key=None if key is None else key_to_pb(key),
    )


def usage_report(request: usage_service_pb2.ReportUsageRequest) -> UsageReport:
    """What a service counted."""
    return UsageReport(
        request.report_id,
        [
            UsageSum(
                UsagePlace(_hour(f"deltas[{number}].hour", delta.hour), delta.project, delta.model),
                Counts(*(getattr(delta.counts, name) for name in Counts._fields)),
            )
            for number, delta in enumerate(request.deltas)
        ],
    )


def usage_query(request: usage_service_pb2.ListUsageRequest) -> UsageQuery:
    """Which sums an operator asks for."""
    if request.period not in _PERIODS:
        raise InvalidField(field="period", problem=f"{request.period} is no period")
    return UsageQuery(
        project=request.project,
        model=request.model,
        start=_whole_hour(request, "start_time"),
        end=_whole_hour(request, "end_time"),
        period=_PERIODS[request.period],
    )


def usage_to_pb(found: UsageSum) -> usage_service_pb2.UsageSum:
    """A sum as operators see it."""
    return usage_service_pb2.UsageSum(
        project=found.place.project,
        model=found.place.model,
        start_time=timestamp(found.place.start),
        counts=usage_service_pb2.UsageCounts(**found.counts._asdict()),
    )


def _scope(number: int, value: int) -> str:
    name = key_service_pb2.KeyScope.DESCRIPTOR.values_by_number.get(value)
    if value == key_service_pb2.KEY_SCOPE_UNSPECIFIED or name is None:
        raise InvalidField(field=f"scopes[{number}]", problem=f"{value} is no scope")
    return str(name.name.removeprefix(_SCOPE).lower())


def _priority(value: int) -> Priority:
    if value == generation_pb2.PRIORITY_UNSPECIFIED:
        return Priority.NORMAL
    try:
        return Priority(value)
    except ValueError:
        raise InvalidField(field="priority", problem=f"{value} is no priority") from None


def _time(
    request: key_service_pb2.CreateKeyRequest | usage_service_pb2.ListUsageRequest, field: str
) -> datetime | None:
    return _instant(field, getattr(request, field)) if request.HasField(field) else None


def _whole_hour(request: usage_service_pb2.ListUsageRequest, field: str) -> datetime | None:
    time = _time(request, field)
    return None if time is None else hour_of(time)


def _hour(field: str, stamp: Timestamp) -> datetime:
    return hour_of(_instant(field, stamp))


def _instant(field: str, stamp: Timestamp) -> datetime:
    try:
        return stamp.ToDatetime(UTC)
    except (ValueError, OverflowError):
        raise InvalidField(field=field, problem="it is no time") from None
