"""An operator, and a service of ours, as clients of a control service: projects, keys and usage."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import grpc.aio
from corral.control.v1 import (
    job_service_pb2,
    key_service_pb2,
    project_service_pb2,
    usage_service_pb2,
)
from corral.control.v1.job_service_pb2_grpc import JobServiceStub
from corral.control.v1.key_service_pb2_grpc import KeyServiceStub
from corral.control.v1.project_service_pb2_grpc import ProjectServiceStub
from corral.control.v1.usage_service_pb2_grpc import UsageServiceStub
from google.protobuf.timestamp_pb2 import Timestamp

from svc_kit.auth.keys import hash_key
from svc_kit.rpc.client import translate_errors
from tests.support.control import RunningControl

if TYPE_CHECKING:  # stubs over an aio channel have names for type checkers only
    from corral.control.v1.job_service_pb2_grpc import JobServiceAsyncStub
    from corral.control.v1.key_service_pb2_grpc import KeyServiceAsyncStub
    from corral.control.v1.project_service_pb2_grpc import ProjectServiceAsyncStub
    from corral.control.v1.usage_service_pb2_grpc import UsageServiceAsyncStub

JobPb = job_service_pb2.Job
Verdict = key_service_pb2.VerifyKeyResponse.Verdict
ADMIN, INFERENCE = key_service_pb2.KEY_SCOPE_ADMIN, key_service_pb2.KEY_SCOPE_INFERENCE


def stamp(time: datetime) -> Timestamp:
    """A time as protos have it."""
    made = Timestamp()
    made.FromDatetime(time)
    return made


@dataclass(frozen=True)
class Operator:
    """The services for operators, with some credential; failures are our errors."""

    channel: grpc.aio.Channel = field(repr=False)
    metadata: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, running: RunningControl, credential: str | None = None) -> "Operator":
        """With an API key; None: with the service token, as one of our own services."""
        shown = credential or (running.folder / "token").read_text().strip()
        return cls(running.client.channel, (("authorization", f"Bearer {shown}"),))

    @property
    def projects(self) -> "ProjectServiceAsyncStub":
        """ProjectService, bare."""
        return ProjectServiceStub(self.channel)

    @property
    def keys(self) -> "KeyServiceAsyncStub":
        """KeyService, bare."""
        return KeyServiceStub(self.channel)

    @property
    def usage(self) -> "UsageServiceAsyncStub":
        """UsageService, bare."""
        return UsageServiceStub(self.channel)

    @property
    def jobs(self) -> "JobServiceAsyncStub":
        """JobService, bare."""
        return JobServiceStub(self.channel)

    async def get_job(self, job_id: str) -> JobPb:
        """One job."""
        request = job_service_pb2.GetJobRequest(job_id=job_id)
        with translate_errors():
            return (await self.jobs.GetJob(request, metadata=self.metadata)).job

    async def list_jobs(self, **request: Any) -> job_service_pb2.ListJobsResponse:
        """A page of jobs."""
        with translate_errors():
            return await self.jobs.ListJobs(
                job_service_pb2.ListJobsRequest(**request), metadata=self.metadata
            )

    async def retry_job(self, job_id: str) -> JobPb:
        """Let a dead job begin again."""
        request = job_service_pb2.RetryJobRequest(job_id=job_id)
        with translate_errors():
            return (await self.jobs.RetryJob(request, metadata=self.metadata)).job

    async def create_project(self, project_id: str, **request: Any) -> project_service_pb2.Project:
        """A project."""
        with translate_errors():
            answer = await self.projects.CreateProject(
                project_service_pb2.CreateProjectRequest(project_id=project_id, **request),
                metadata=self.metadata,
            )
        return answer.project

    async def archive(self, project_id: str) -> project_service_pb2.Project:
        """Close a project."""
        request = project_service_pb2.ArchiveProjectRequest(project_id=project_id)
        with translate_errors():
            return (await self.projects.ArchiveProject(request, metadata=self.metadata)).project

    async def list_projects(self, **request: Any) -> project_service_pb2.ListProjectsResponse:
        """A page of projects."""
        with translate_errors():
            return await self.projects.ListProjects(
                project_service_pb2.ListProjectsRequest(**request), metadata=self.metadata
            )

    async def create_key(
        self, project_id: str = "", *, name: str = "ci", **request: Any
    ) -> key_service_pb2.CreateKeyResponse:
        """A key, and the key itself."""
        with translate_errors():
            return await self.keys.CreateKey(
                key_service_pb2.CreateKeyRequest(project_id=project_id, name=name, **request),
                metadata=self.metadata,
            )

    async def get_key(self, key_id: str) -> key_service_pb2.ApiKey:
        """One key."""
        request = key_service_pb2.GetKeyRequest(key_id=key_id)
        with translate_errors():
            return (await self.keys.GetKey(request, metadata=self.metadata)).key

    async def list_keys(self, **request: Any) -> key_service_pb2.ListKeysResponse:
        """A page of keys."""
        with translate_errors():
            return await self.keys.ListKeys(
                key_service_pb2.ListKeysRequest(**request), metadata=self.metadata
            )

    async def revoke(self, key_id: str) -> key_service_pb2.ApiKey:
        """End a key."""
        request = key_service_pb2.RevokeKeyRequest(key_id=key_id)
        with translate_errors():
            return (await self.keys.RevokeKey(request, metadata=self.metadata)).key

    async def verify(self, key: str) -> key_service_pb2.VerifyKeyResponse:
        """What a service is told of a key."""
        request = key_service_pb2.VerifyKeyRequest(sha256=hash_key(key))
        with translate_errors():
            return await self.keys.VerifyKey(request, metadata=self.metadata)

    async def verdict(self, key: str) -> str:
        """The same, as a word."""
        return Verdict.Name((await self.verify(key)).verdict).removeprefix("VERDICT_")

    async def report(self, report_id: str, *deltas: usage_service_pb2.UsageDelta) -> None:
        """Report usage, as a service does."""
        request = usage_service_pb2.ReportUsageRequest(report_id=report_id, deltas=deltas)
        with translate_errors():
            await self.usage.ReportUsage(request, metadata=self.metadata)

    async def list_usage(self, **request: Any) -> usage_service_pb2.ListUsageResponse:
        """A page of sums."""
        with translate_errors():
            return await self.usage.ListUsage(
                usage_service_pb2.ListUsageRequest(**request), metadata=self.metadata
            )


def a_delta(
    hour: datetime, counts: tuple[int, int, int, int], *, project: str = "red", model: str = "demo"
) -> usage_service_pb2.UsageDelta:
    """Requests, prompt tokens, cached ones, completion tokens."""
    requests, prompt, cached, completion = counts
    return usage_service_pb2.UsageDelta(
        project=project,
        model=model,
        hour=stamp(hour),
        counts=usage_service_pb2.UsageCounts(
            requests=requests,
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=completion,
        ),
    )
