"""Deleted objects leave nothing behind in the archive of the inference service, which may be away
when they are deleted: a job of low priority, written with the deletion."""

import logging
from datetime import timedelta
from typing import Final

from control_svc.domain.archives import Archive
from control_svc.domain.ids import JOB, IdSource
from control_svc.domain.jobs import Claim, Job, JobPriority, NewJob
from control_svc.storage.repositories.jobs import SqlJobs
from control_svc.storage.unit_of_work import Transaction
from control_svc.usecases.working import JobContext
from svc_kit.errors import Unavailable

_log = logging.getLogger(__name__)

KIND: Final = "forget-archive"
"""The jobs that delete what is archived."""
MOST_POSTPONED: Final = 1440
"""A day or so, at a minute between two attempts. What is archived then goes when there is no room
for it, and the queue does not fill up with jobs for a service that was given up."""
_WORKERS_LEAVE: Final = timedelta(seconds=5)
_MARK_CHARACTERS: Final = 18


class Archives:
    """Has deleted objects forgotten."""

    def __init__(self, ids: IdSource, *, is_used: bool) -> None:
        """`is_used`: objects are named to the inference service, so it may have kept something."""
        self._ids = ids
        self._is_used = is_used

    async def forget(
        self,
        tx: Transaction,
        project: str,
        object_id: str,
        *,
        is_worked_on: bool = False,
    ) -> None:
        """Have what is kept for an object deleted, in the transaction that deletes the object.

        `is_worked_on`: a worker may be about to compute more, and hears of the end soon.
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
            delay=_WORKERS_LEAVE if is_worked_on else timedelta(),
        )
        await SqlJobs(tx).add(project, job)


class ArchiveCleaner:
    """Does the jobs."""

    kind = KIND
    concurrency = 1

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def run(self, claim: Claim, context: JobContext) -> None:
        """Delete what is kept for an object; while the service is away, later."""
        object_id = claim.subject.split("/")[0]
        try:
            await self._archive.drop(object_id)
        except Unavailable:
            if claim.num_postponed < MOST_POSTPONED:
                raise
            _log.warning("what is archived for %s is left to the inference service", object_id)

    async def bury(self, tx: Transaction, job: Job) -> None:
        """Nothing: the object is gone."""
