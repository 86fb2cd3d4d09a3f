"""Deletes the prefixes of deleted objects and archived projects from the disk prefix cache of the
inference service.

Each turn names its object (`TurnRequest.keep_for`); other requests are those of their project. A
job deletes the prefixes when the service is reachable.
"""

import logging
from datetime import timedelta
from typing import Final, Protocol

import grpc.aio
from corral.inference.v1 import engine_service_pb2 as pb
from corral.inference.v1.engine_service_pb2_grpc import EngineServiceStub

from control_svc.base.ids import JOB, IdSource
from control_svc.db.transaction import Transaction
from control_svc.inference.client import SERVICE
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import Claim, Job, JobPriority, NewJob
from control_svc.jobs.queries import JobQueries
from svc_kit.auth.authenticator import ServiceToken
from svc_kit.errors import Unavailable
from svc_kit.rpc.client import translate_errors


class DiskPrefixCache(Protocol):
    async def delete(self, request: pb.DropSnapshotsRequest) -> None:
        """Delete all prefixes of objects or projects, if any, and store none of what runs now.

        Raises Unavailable if the service is not reachable.
        """


_log = logging.getLogger(__name__)
KIND: Final = "forget-archive"
"""Job kind."""
MAX_POSTPONED: Final = 1440
"""About a day, at a minute between attempts. Then the job gives up, so that the queue does not fill
up; the inference service evicts the prefixes when it needs the space."""
_STOP_DELAY: Final = timedelta(seconds=5)
_KEYS_DELAY: Final = timedelta(seconds=35)
"""For so long, and a call, the keys of an archived project may be cached (`KeyCacheSeconds`)."""
_PROJECT: Final = "project"
"""The owner in the subject of a job that deletes the prefixes of its project."""
_SUFFIX_CHARACTERS: Final = 18


class PrefixCleanup:
    """Queues the deletion of prefixes."""

    def __init__(self, ids: IdSource, *, is_used: bool) -> None:
        """`is_used`: whether turns name their objects, so that prefixes may be stored."""
        self._ids = ids
        self._is_used = is_used

    async def enqueue(self, tx: Transaction, object_id: str, *, is_running: bool = False) -> None:
        """Queue a deletion in the transaction that deletes the object.

        `is_running` delays it, since a worker may still run a turn of the object.
        """
        await self._enqueue(tx, object_id, _STOP_DELAY if is_running else timedelta())

    async def enqueue_project(self, tx: Transaction, project: str) -> None:
        """Queue deletions in the transaction that archives the project: one now, and one when its
        keys are accepted no more."""
        for delay in (timedelta(), _KEYS_DELAY):
            await self._enqueue(tx, _PROJECT, delay)

    async def _enqueue(self, tx: Transaction, owner: str, delay: timedelta) -> None:
        if not self._is_used:
            return
        job_id = self._ids.new(JOB)
        job = NewJob(
            id=job_id,
            kind=KIND,
            # Unique, because several responses of one chain may be deleted.
            subject=f"{owner}/{job_id[-_SUFFIX_CHARACTERS:]}",
            priority=JobPriority.BATCH,
            delay=delay,
        )
        await JobQueries(tx).add(job)


class PrefixCleanupWorker:
    kind = KIND
    concurrency = 1

    def __init__(self, prefixes: DiskPrefixCache) -> None:
        self._prefixes = prefixes

    async def run(self, claim: Claim, context: JobContext) -> None:
        """Delete the prefixes of an object or a project. Raises Unavailable to retry later."""
        owner = claim.subject.split("/")[0]
        request = pb.DropSnapshotsRequest(object_ids=[owner])
        if owner == _PROJECT:
            owner = f"project {claim.project}"
            request = pb.DropSnapshotsRequest(projects=[claim.project])
        try:
            await self._prefixes.delete(request)
        except Unavailable:
            if claim.num_postponed < MAX_POSTPONED:
                raise
            _log.warning(
                "stored prefixes of %s are not deleted: the inference service is not reachable",
                owner,
            )

    async def on_dead(self, tx: Transaction, job: Job) -> None:
        """Do nothing: the object has been deleted."""


_TIMEOUT_S: Final = 30.0


class RpcDiskPrefixCache:
    """A `DiskPrefixCache` over a channel."""

    def __init__(self, channel: grpc.aio.Channel, token: ServiceToken) -> None:
        self._stub = EngineServiceStub(channel)
        self._metadata = (("authorization", f"Bearer {token.secret}"),)

    async def delete(self, request: pb.DropSnapshotsRequest) -> None:
        """Delete the prefixes of objects or projects. Raises the service's errors."""
        with translate_errors(SERVICE):
            await self._stub.DropSnapshots(request, metadata=self._metadata, timeout=_TIMEOUT_S)
