"""gRPC servicers of projects, keys and usage."""

import logging
from datetime import UTC, datetime
from typing import Final

import grpc
from corral.control.v1 import key_service_pb2, project_service_pb2, usage_service_pb2
from corral.control.v1 import key_service_pb2 as key_pb
from corral.control.v1 import key_service_pb2_grpc as key_rpc
from corral.control.v1 import project_service_pb2 as project_pb
from corral.control.v1 import project_service_pb2_grpc as project_rpc
from corral.control.v1 import usage_service_pb2 as usage_pb
from corral.control.v1 import usage_service_pb2_grpc as usage_rpc
from corral.inference.v1 import generation_pb2
from google.protobuf.timestamp_pb2 import Timestamp

from control_svc.base.pagination import PageRequest
from control_svc.base.proto import optional_timestamp, timestamp
from control_svc.projects.keys import ApiKey, Keys, KeyVerification, NewKey
from control_svc.projects.projects import NewProject, Project, Projects
from control_svc.projects.usage import (
    Counts,
    Period,
    Usage,
    UsageKey,
    UsageQuery,
    UsageReport,
    UsageSum,
    hour_of,
)
from svc_kit.auth.principal import DEFAULT_PROJECT, Priority
from svc_kit.auth.scopes import Scope
from svc_kit.errors import InvalidField

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
    """Convert a project."""
    archived_at = project.archived_at
    return project_service_pb2.Project(
        id=project.id,
        display_name=project.display_name,
        state="STATE_ACTIVE" if archived_at is None else "STATE_ARCHIVED",
        create_time=timestamp(project.created_at),
        archive_time=optional_timestamp(archived_at),
    )


def new_key(request: key_service_pb2.CreateKeyRequest) -> NewKey:
    """Convert the request to create a key. Raises InvalidField for unknown scopes."""
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
    """Convert a key."""
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


def verdict_to_pb(verified: KeyVerification) -> key_service_pb2.VerifyKeyResponse:
    """Convert the verification of a key."""
    key, refusal = verified
    return key_service_pb2.VerifyKeyResponse(
        verdict=key_service_pb2.VerifyKeyResponse.VERDICT_VALID
        if refusal is None
        else _VERDICTS[refusal.reason],
        key=None if key is None else key_to_pb(key),
    )


def usage_report(request: usage_service_pb2.ReportUsageRequest) -> UsageReport:
    """Convert a usage report. Raises InvalidField."""
    return UsageReport(
        request.report_id,
        [
            UsageSum(
                UsageKey(
                    hour_of(_instant(f"deltas[{number}].hour", delta.hour)),
                    delta.project,
                    delta.model,
                ),
                Counts(*(getattr(delta.counts, name) for name in Counts._fields)),
            )
            for number, delta in enumerate(request.deltas)
        ],
    )


def usage_query(request: usage_service_pb2.ListUsageRequest) -> UsageQuery:
    """Convert the filters of sums. Raises InvalidField."""
    if request.period not in _PERIODS:
        raise InvalidField(field="period", problem=f"{request.period} is not a period")
    return UsageQuery(
        project=request.project,
        model=request.model,
        start=_whole_hour(request, "start_time"),
        end=_whole_hour(request, "end_time"),
        period=_PERIODS[request.period],
    )


def usage_to_pb(usage: UsageSum) -> usage_service_pb2.UsageSum:
    """Convert a sum."""
    return usage_service_pb2.UsageSum(
        project=usage.key.project,
        model=usage.key.model,
        start_time=timestamp(usage.key.start),
        counts=usage_service_pb2.UsageCounts(**usage.counts._asdict()),
    )


def _scope(number: int, value: int) -> str:
    name = key_service_pb2.KeyScope.DESCRIPTOR.values_by_number.get(value)
    if value == key_service_pb2.KEY_SCOPE_UNSPECIFIED or name is None:
        raise InvalidField(field=f"scopes[{number}]", problem=f"{value} is not a scope")
    return str(name.name.removeprefix(_SCOPE).lower())


def _priority(value: int) -> Priority:
    if value == generation_pb2.PRIORITY_UNSPECIFIED:
        return Priority.NORMAL
    try:
        return Priority(value)
    except ValueError:
        raise InvalidField(field="priority", problem=f"{value} is not a priority") from None


def _time(
    request: key_service_pb2.CreateKeyRequest | usage_service_pb2.ListUsageRequest, field: str
) -> datetime | None:
    return _instant(field, getattr(request, field)) if request.HasField(field) else None


def _whole_hour(request: usage_service_pb2.ListUsageRequest, field: str) -> datetime | None:
    time = _time(request, field)
    return None if time is None else hour_of(time)


def _instant(field: str, stamp: Timestamp) -> datetime:
    try:
        return stamp.ToDatetime(UTC)
    except (ValueError, OverflowError):
        raise InvalidField(field=field, problem="it is not a valid time") from None


Context = grpc.aio.ServicerContext[object, object]


class ProjectServicer(project_rpc.ProjectServiceServicer):
    """gRPC servicer of projects."""

    def __init__(self, projects: Projects) -> None:
        self._projects = projects

    async def CreateProject(
        self, request: project_pb.CreateProjectRequest, context: Context
    ) -> project_pb.CreateProjectResponse:
        """Create a project."""
        project = await self._projects.create(
            NewProject(
                id=request.project_id,
                display_name=request.display_name,
                request_id=request.request_id,
            )
        )
        return project_pb.CreateProjectResponse(project=project_to_pb(project))

    async def GetProject(
        self, request: project_pb.GetProjectRequest, context: Context
    ) -> project_pb.GetProjectResponse:
        """Describe one project."""
        project = await self._projects.get(request.project_id)
        return project_pb.GetProjectResponse(project=project_to_pb(project))

    async def ListProjects(
        self, request: project_pb.ListProjectsRequest, context: Context
    ) -> project_pb.ListProjectsResponse:
        """List projects."""
        page_request = PageRequest(request.page_size, request.page_token, newest_first=False)
        page = await self._projects.page(page_request, with_archived=request.show_archived)
        projects = [project_to_pb(project) for project in page.items]
        return project_pb.ListProjectsResponse(projects=projects, next_page_token=page.next_token)

    async def ArchiveProject(
        self, request: project_pb.ArchiveProjectRequest, context: Context
    ) -> project_pb.ArchiveProjectResponse:
        """Archive a project."""
        project = await self._projects.archive(request.project_id)
        return project_pb.ArchiveProjectResponse(project=project_to_pb(project))


_log = logging.getLogger(__name__)


class KeyServicer(key_rpc.KeyServiceServicer):
    """gRPC servicer of API keys."""

    def __init__(self, keys: Keys, *, serves_keyless: bool) -> None:
        """`serves_keyless` is whether callers without a key are served."""
        self._keys = keys
        self._serves_keyless = serves_keyless

    async def CreateKey(
        self, request: key_pb.CreateKeyRequest, context: Context
    ) -> key_pb.CreateKeyResponse:
        """Create a key."""
        created = await self._keys.create(new_key(request))
        if self._serves_keyless:
            _log.warning(
                "API key created, but callers without a key are still served: set require_keys"
            )
        return key_pb.CreateKeyResponse(
            key=key_to_pb(created.key),
            secret=created.secret,
            serves_keyless_callers=self._serves_keyless,
        )

    async def GetKey(
        self, request: key_pb.GetKeyRequest, context: Context
    ) -> key_pb.GetKeyResponse:
        """Describe one key."""
        key = await self._keys.get(request.key_id)
        return key_pb.GetKeyResponse(key=key_to_pb(key))

    async def ListKeys(
        self, request: key_pb.ListKeysRequest, context: Context
    ) -> key_pb.ListKeysResponse:
        """List keys."""
        page_request = PageRequest(request.page_size, request.page_token)
        page = await self._keys.page(
            page_request, request.project_id, with_revoked=request.show_revoked
        )
        keys = [key_to_pb(key) for key in page.items]
        return key_pb.ListKeysResponse(keys=keys, next_page_token=page.next_token)

    async def RevokeKey(
        self, request: key_pb.RevokeKeyRequest, context: Context
    ) -> key_pb.RevokeKeyResponse:
        """Revoke a key."""
        key = await self._keys.revoke(request.key_id)
        return key_pb.RevokeKeyResponse(key=key_to_pb(key))

    async def VerifyKey(
        self, request: key_pb.VerifyKeyRequest, context: Context
    ) -> key_pb.VerifyKeyResponse:
        """Verify a key for a service."""
        return verdict_to_pb(await self._keys.look_up(request.sha256))


class UsageServicer(usage_rpc.UsageServiceServicer):
    """gRPC servicer of usage."""

    def __init__(self, usage: Usage) -> None:
        self._usage = usage

    async def ReportUsage(
        self, request: usage_pb.ReportUsageRequest, context: Context
    ) -> usage_pb.ReportUsageResponse:
        """Add a usage report."""
        await self._usage.add(usage_report(request))
        return usage_pb.ReportUsageResponse()

    async def ListUsage(
        self, request: usage_pb.ListUsageRequest, context: Context
    ) -> usage_pb.ListUsageResponse:
        """List sums."""
        page_request = PageRequest(request.page_size, request.page_token, newest_first=False)
        page = await self._usage.page(usage_query(request), page_request)
        sums = [usage_to_pb(each) for each in page.items]
        return usage_pb.ListUsageResponse(sums=sums, next_page_token=page.next_token)
