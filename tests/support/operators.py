"""A client of the services for operators: jobs, projects, keys, usage and limits."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from corral.control.v1 import (
    job_service_pb2,
    key_service_pb2,
    limit_service_pb2,
    project_service_pb2,
    usage_service_pb2,
)
from corral.control.v1.job_service_pb2_grpc import JobServiceStub
from corral.control.v1.key_service_pb2_grpc import KeyServiceStub
from corral.control.v1.limit_service_pb2_grpc import LimitServiceStub
from corral.control.v1.project_service_pb2_grpc import ProjectServiceStub
from corral.control.v1.usage_service_pb2_grpc import UsageServiceStub
from google.protobuf.timestamp_pb2 import Timestamp

from svc_kit.auth.keys import hash_key
from tests.support.control import GrpcClient, RunningControl

JobPb = job_service_pb2.Job
LimitPb = limit_service_pb2.Limit
Verdict = key_service_pb2.VerifyKeyResponse.Verdict
ADMIN, INFERENCE = key_service_pb2.KEY_SCOPE_ADMIN, key_service_pb2.KEY_SCOPE_INFERENCE
GENERATE = key_service_pb2.KEY_SCOPE_GENERATE


def make_timestamp(time: datetime) -> Timestamp:
    timestamp = Timestamp()
    timestamp.FromDatetime(time)
    return timestamp


@dataclass
class Operator(GrpcClient):
    def __post_init__(self) -> None:
        self.projects = ProjectServiceStub(self.channel)
        self.keys = KeyServiceStub(self.channel)
        self.usage = UsageServiceStub(self.channel)
        self.jobs = JobServiceStub(self.channel)
        self.limits = LimitServiceStub(self.channel)

    @classmethod
    def of(cls, running: RunningControl, credential: str | None = None) -> "Operator":
        """A client with an API key, by default with the service token."""
        bearer = credential or (running.folder / "token").read_text().strip()
        return cls(running.client.channel, (("authorization", f"Bearer {bearer}"),))

    async def get_job(self, job_id: str) -> JobPb:
        request = job_service_pb2.GetJobRequest(job_id=job_id)
        return (await self.call(self.jobs.GetJob, request)).job

    async def list_jobs(self, **request: Any) -> job_service_pb2.ListJobsResponse:
        return await self.call(self.jobs.ListJobs, job_service_pb2.ListJobsRequest(**request))

    async def retry_job(self, job_id: str) -> JobPb:
        request = job_service_pb2.RetryJobRequest(job_id=job_id)
        return (await self.call(self.jobs.RetryJob, request)).job

    async def create_project(self, project_id: str, **request: Any) -> project_service_pb2.Project:
        project = project_service_pb2.CreateProjectRequest(project_id=project_id, **request)
        return (await self.call(self.projects.CreateProject, project)).project

    async def archive(self, project_id: str) -> project_service_pb2.Project:
        request = project_service_pb2.ArchiveProjectRequest(project_id=project_id)
        return (await self.call(self.projects.ArchiveProject, request)).project

    async def list_projects(self, **request: Any) -> project_service_pb2.ListProjectsResponse:
        return await self.call(
            self.projects.ListProjects, project_service_pb2.ListProjectsRequest(**request)
        )

    async def create_key(
        self, project_id: str = "", *, name: str = "ci", **request: Any
    ) -> key_service_pb2.CreateKeyResponse:
        """Create a key; by default with any models."""
        request.setdefault("allow_unknown", True)
        key = key_service_pb2.CreateKeyRequest(project_id=project_id, name=name, **request)
        return await self.call(self.keys.CreateKey, key)

    async def get_key(self, key_id: str) -> key_service_pb2.ApiKey:
        request = key_service_pb2.GetKeyRequest(key_id=key_id)
        return (await self.call(self.keys.GetKey, request)).key

    async def list_keys(self, **request: Any) -> key_service_pb2.ListKeysResponse:
        return await self.call(self.keys.ListKeys, key_service_pb2.ListKeysRequest(**request))

    async def revoke(self, key_id: str) -> key_service_pb2.ApiKey:
        request = key_service_pb2.RevokeKeyRequest(key_id=key_id)
        return (await self.call(self.keys.RevokeKey, request)).key

    async def verify(self, key: str) -> key_service_pb2.VerifyKeyResponse:
        request = key_service_pb2.VerifyKeyRequest(sha256=hash_key(key))
        return await self.call(self.keys.VerifyKey, request)

    async def verdict(self, key: str) -> str:
        return Verdict.Name((await self.verify(key)).verdict).removeprefix("VERDICT_")

    async def report(self, report_id: str, *deltas: usage_service_pb2.UsageDelta) -> None:
        request = usage_service_pb2.ReportUsageRequest(report_id=report_id, deltas=deltas)
        await self.call(self.usage.ReportUsage, request)

    async def list_usage(self, **request: Any) -> usage_service_pb2.ListUsageResponse:
        return await self.call(self.usage.ListUsage, usage_service_pb2.ListUsageRequest(**request))

    async def create_limit(
        self, limit_id: str, unit: str, amount: int, *period: str, **fields: Any
    ) -> LimitPb:
        limit = make_limit(limit_id, unit, amount, *period, **fields)
        request = limit_service_pb2.CreateLimitRequest(limit=limit, allow_unknown=True)
        return (await self.call(self.limits.CreateLimit, request)).limit

    async def limit_buckets(
        self, limit_id: str, **request: Any
    ) -> limit_service_pb2.ListLimitBucketsResponse:
        asked = limit_service_pb2.ListLimitBucketsRequest(limit_id=limit_id, **request)
        return await self.call(self.limits.ListLimitBuckets, asked)

    async def lease(
        self, holder: str, *shares: limit_service_pb2.LimitShareRequest
    ) -> limit_service_pb2.LeaseLimitsResponse:
        request = limit_service_pb2.LeaseLimitsRequest(holder=holder, shares=shares)
        return await self.call(self.limits.LeaseLimits, request)


def make_limit(
    limit_id: str, unit: str, amount: int, period: str = "MINUTE", **fields: Any
) -> LimitPb:
    """A limit, by the names of unit and period; an empty period is none."""
    return LimitPb(
        id=limit_id,
        unit=f"UNIT_{unit}",
        amount=amount,
        period=f"PERIOD_{period}" if period else None,
        **fields,
    )


def make_usage_delta(
    hour: datetime,
    counts: tuple[int, int, int, int],
    *,
    project: str = "red",
    model: str = "demo",
    key: str = "",
) -> usage_service_pb2.UsageDelta:
    requests, prompt, cached, completion = counts
    return usage_service_pb2.UsageDelta(
        project=project,
        model=model,
        key=key,
        hour=make_timestamp(hour),
        counts=usage_service_pb2.UsageCounts(
            requests=requests,
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=completion,
        ),
    )
