"""gRPC servicers of projects, keys and usage."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, Literal

from corral.control.v1 import key_service_pb2 as key_pb
from corral.control.v1 import key_service_pb2_grpc as key_rpc
from corral.control.v1 import project_service_pb2 as project_pb
from corral.control.v1 import project_service_pb2_grpc as project_rpc
from corral.control.v1 import usage_service_pb2 as usage_pb
from corral.control.v1 import usage_service_pb2_grpc as usage_rpc
from corral.control.v1.limit_service_pb2 import Limit
from corral.inference.v1 import generation_pb2

from control_svc.base.proto import Context, page_request
from control_svc.base.validation import check_text
from control_svc.projects.key_model import ApiKey, NewKey, Rotation
from control_svc.projects.keys import AddLimits, Keys, KeyVerification
from control_svc.projects.projects import NewProject, Project, Projects
from control_svc.projects.usage import (
    Usage,
    UsageDelta,
    UsageKey,
    UsageQuery,
    UsageReport,
    UsageSum,
    hour_of,
)
from svc_kit.auth.principal import DEFAULT_PROJECT, Priority
from svc_kit.auth.scopes import Scope
from svc_kit.rpc.message_mapper import EnumMapper, MessageMapper, decode_timestamp

_VERDICTS: Final = {
    "API_KEY_INVALID": key_pb.VerifyKeyResponse.VERDICT_UNKNOWN,
    "API_KEY_EXPIRED": key_pb.VerifyKeyResponse.VERDICT_EXPIRED,
    "API_KEY_REVOKED": key_pb.VerifyKeyResponse.VERDICT_REVOKED,
    "PROJECT_ARCHIVED": key_pb.VerifyKeyResponse.VERDICT_PROJECT_ARCHIVED,
}
_SCOPES: Final = EnumMapper[str](
    Literal["inference", "admin", "generate", "files", "files_read", "read", "admin_read"],
    key_pb.KeyScope,
)
_PRIORITIES: Final = EnumMapper[Priority](Priority, generation_pb2.Priority)
_NEW_PROJECT: Final = MessageMapper(
    NewProject, project_pb.CreateProjectRequest, renamed={"id": "project_id"}
)
_PROJECT: Final = MessageMapper(Project, project_pb.Project, only_message=["state"])
_KEY: Final = MessageMapper(
    ApiKey,
    key_pb.ApiKey,
    only_domain=["sha256", "old_sha256", "scopes"],
    only_message=["scopes"],
)
_ROTATION: Final = MessageMapper(Rotation, key_pb.RotateKeyRequest)
_DELTA: Final = MessageMapper(UsageDelta, usage_pb.UsageDelta)
_SUM: Final = MessageMapper(
    UsageSum,
    usage_pb.UsageSum,
    flat={
        "key": MessageMapper(
            UsageKey, usage_pb.UsageSum, renamed={"start": "start_time"}, is_part=True
        )
    },
)
_QUERY: Final = MessageMapper(
    UsageQuery,
    usage_pb.ListUsageRequest,
    renamed={"start": "start_time", "end": "end_time"},
    only_message=["page_size", "page_token"],
)


def project_to_pb(project: Project) -> project_pb.Project:
    """Convert a project."""
    is_archived = project.archived_at is not None
    states = project_pb.Project
    state = states.STATE_ARCHIVED if is_archived else states.STATE_ACTIVE
    return _PROJECT.to_message(project, state=state)


def new_key(request: key_pb.CreateKeyRequest) -> NewKey:
    """Convert the request to create a key. Raises MissingField or InvalidField."""
    scopes = {
        _SCOPES.decode(value, f"scopes[{number}]") for number, value in enumerate(request.scopes)
    }
    has_expiry = request.HasField("expire_time")
    return NewKey(
        project=request.project_id or DEFAULT_PROJECT,
        name=request.name,
        scopes=frozenset(scopes or {Scope.INFERENCE.value}),
        priority=_PRIORITIES.decode_optional(request.priority, "priority") or Priority.NORMAL,
        expires_at=decode_timestamp(request.expire_time, "expire_time") if has_expiry else None,
        request_id=request.request_id,
        models=tuple(request.models),
        networks=tuple(request.networks),
        limits=tuple(each.SerializeToString(deterministic=True).hex() for each in request.limits),
    )


def key_to_pb(key: ApiKey) -> key_pb.ApiKey:
    """Convert a key."""
    return _KEY.to_message(key, scopes=map(_SCOPES.encode, sorted(key.scopes)))


def verdict_to_pb(verified: KeyVerification) -> key_pb.VerifyKeyResponse:
    """Convert the verification of a key."""
    key, refusal = verified
    return key_pb.VerifyKeyResponse(
        verdict=key_pb.VerifyKeyResponse.VERDICT_VALID
        if refusal is None
        else _VERDICTS[refusal.reason],
        key=None if key is None else key_to_pb(key),
    )


def usage_report(request: usage_pb.ReportUsageRequest) -> UsageReport:
    """Convert a usage report. Raises InvalidField."""
    deltas = [
        _DELTA.from_message(delta, f"deltas[{number}]")
        for number, delta in enumerate(request.deltas)
    ]
    return UsageReport(
        request.report_id,
        [replace(each, hour=hour_of(each.hour)) for each in deltas],
    )


def usage_query(request: usage_pb.ListUsageRequest) -> UsageQuery:
    """Convert the filters of sums. Raises InvalidField."""
    query = _QUERY.from_message(request)
    return replace(
        query, start=query.start and hour_of(query.start), end=query.end and hour_of(query.end)
    )


class ProjectServicer(project_rpc.ProjectServiceServicer):
    """gRPC servicer of projects."""

    def __init__(self, projects: Projects) -> None:
        self._projects = projects

    async def CreateProject(
        self, request: project_pb.CreateProjectRequest, context: Context
    ) -> project_pb.CreateProjectResponse:
        """Create a project."""
        project = await self._projects.create(_NEW_PROJECT.from_message(request))
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
        page = await self._projects.page(
            page_request(request, 0, newest_first=False), with_archived=request.show_archived
        )
        projects = [project_to_pb(project) for project in page.items]
        return project_pb.ListProjectsResponse(projects=projects, next_page_token=page.next_token)

    async def ArchiveProject(
        self, request: project_pb.ArchiveProjectRequest, context: Context
    ) -> project_pb.ArchiveProjectResponse:
        """Archive a project."""
        project = await self._projects.archive(request.project_id)
        return project_pb.ArchiveProjectResponse(project=project_to_pb(project))

    async def VerifyProject(
        self, request: project_pb.VerifyProjectRequest, context: Context
    ) -> project_pb.VerifyProjectResponse:
        """Return whether callers of a project are accepted."""
        project_id = check_text("project_id", request.project_id)
        states = project_pb.Project
        if await self._projects.is_archived(project_id):
            return project_pb.VerifyProjectResponse(state=states.STATE_ARCHIVED)
        return project_pb.VerifyProjectResponse(state=states.STATE_ACTIVE)


_log = logging.getLogger(__name__)


class KeyServicer(key_rpc.KeyServiceServicer):
    """gRPC servicer of API keys."""

    def __init__(
        self,
        keys: Keys,
        check_model: Callable[[str, str], Awaitable[object]],
        limits_to_add: Callable[[Sequence[Limit], bool], AddLimits],
        *,
        serves_keyless: bool,
    ) -> None:
        """`check_model` raises unless a project may use a model; `limits_to_add` converts the
        limits of a new key, and is told whether their projects may be unknown; `serves_keyless` is
        whether callers without a key are served."""
        self._keys = keys
        self._check_model = check_model
        self._limits_to_add = limits_to_add
        self._serves_keyless = serves_keyless

    async def CreateKey(
        self, request: key_pb.CreateKeyRequest, context: Context
    ) -> key_pb.CreateKeyResponse:
        """Create a key."""
        new = new_key(request)
        add_limits = self._limits_to_add(request.limits, request.allow_unknown)

        async def check_models() -> None:
            if request.allow_unknown:
                return
            limited = [(each.project, each.model) for each in request.limits if each.model]
            models = [*(("", model) for model in request.models), *limited]
            for project, model in dict.fromkeys(models):
                await self._check_model(project or new.project, model)

        created = await self._keys.create(new, add_limits, check_models)
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
        page = await self._keys.page(
            page_request(request, 0), request.project_id, with_revoked=request.show_revoked
        )
        keys = [key_to_pb(key) for key in page.items]
        return key_pb.ListKeysResponse(keys=keys, next_page_token=page.next_token)

    async def RevokeKey(
        self, request: key_pb.RevokeKeyRequest, context: Context
    ) -> key_pb.RevokeKeyResponse:
        """Revoke a key."""
        key = await self._keys.revoke(request.key_id)
        return key_pb.RevokeKeyResponse(key=key_to_pb(key))

    async def RotateKey(
        self, request: key_pb.RotateKeyRequest, context: Context
    ) -> key_pb.RotateKeyResponse:
        """Give a key a new secret."""
        rotated = await self._keys.rotate(_ROTATION.from_message(request))
        return key_pb.RotateKeyResponse(key=key_to_pb(rotated.key), secret=rotated.secret)

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
        pages = page_request(request, 0, newest_first=False)
        page = await self._usage.page(usage_query(request), pages)
        sums = [_SUM.to_message(each) for each in page.items]
        return usage_pb.ListUsageResponse(sums=sums, next_page_token=page.next_token)
