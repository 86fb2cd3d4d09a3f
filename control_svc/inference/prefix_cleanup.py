"""Deletes what the inference service has stored for deleted objects in its disk prefix cache.

Objects are named with each turn (`TurnRequest.keep_for`); a job deletes their prefixes later, when
the service can be reached.
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
    """What is kept for stored objects."""

    async def drop(self, object_id: str) -> None:
        """Delete it, wherever it is, and keep no more of what runs; there need be nothing.

        Raises Unavailable while the service cannot be asked.
        """


_log = logging.getLogger(__name__)
KIND: Final = "forget-archive"
"""The jobs that delete what is archived."""
MAX_POSTPONED: Final = 1440
"""A day or so, at a minute between two attempts. What is archived then goes when there is no room
for it, and the queue does not fill up with jobs for a service that was given up."""
_WORKERS_LEAVE: Final = timedelta(seconds=5)
_MARK_CHARACTERS: Final = 18


class PrefixCleanup:
    """Has deleted objects forgotten."""

    def __init__(self, ids: IdSource, *, is_used: bool) -> None:
        """`is_used`: objects are named to the inference service, so it may have kept something."""
        self._ids = ids
        self._is_used = is_used

    async def enqueue(
        self,
        tx: Transaction,
        project: str,
        object_id: str,
        *,
        is_running: bool = False,
    ) -> None:
        """Queue the deletion of an object's stored prefixes, in the transaction that deletes the
        object. `is_running` delays it while a worker may still compute.
        """
        if not self._is_used:
            return
        job_id = self._ids.new(JOB)
        job = NewJob(
            id=job_id,
            kind=KIND,
            # With a mark of its own: of a chain of responses one after the other is deleted.
            subject=f"{object_id}/{job_id[-_MARK_CHARACTERS:]}",
            priority=JobPriority.BATCH,
            delay=_WORKERS_LEAVE if is_running else timedelta(),
        )
        await JobQueries(tx).add(project, job)


class PrefixCleanupWorker:
    """Does the jobs."""

    kind = KIND
    concurrency = 1

    def __init__(self, archive: DiskPrefixCache) -> None:
        self._archive = archive

    async def run(self, claim: Claim, context: JobContext) -> None:
        """Delete what is kept for an object; while the service is away, later."""
        object_id = claim.subject.split("/")[0]
        try:
            await self._archive.drop(object_id)
        except Unavailable:
            if claim.num_postponed < MAX_POSTPONED:
                raise
            _log.warning(
                "the archived prefixes of %s are left for the inference service to expire",
                object_id,
            )

    async def on_dead(self, tx: Transaction, job: Job) -> None:
        """Nothing: the object is gone."""


_TIMEOUT_S: Final = 30.0


class RpcDiskPrefixCache:
    """An `Archive` over a channel."""

    def __init__(self, channel: grpc.aio.Channel, token: ServiceToken) -> None:
        self._stub = EngineServiceStub(channel)
        self._metadata = (("authorization", f"Bearer {token.secret}"),)

    async def drop(self, object_id: str) -> None:
        """Delete what is kept for an object. Raises what the service answers."""
        request = pb.DropSnapshotsRequest(object_ids=[object_id])
        with translate_errors(SERVICE):
            await self._stub.DropSnapshots(request, metadata=self._metadata, timeout=_TIMEOUT_S)
