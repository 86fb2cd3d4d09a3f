"""The end of runs that wait for the outputs of functions for too long: delayed jobs."""

from control_svc.domain.jobs import Claim, Job
from control_svc.domain.run_ports import RunEventCodec
from control_svc.storage.repositories.runs import SqlRuns
from control_svc.storage.repositories.streams import SqlEventStreams
from control_svc.storage.unit_of_work import Transaction
from control_svc.usecases.run_ending import EXPIRED, EXPIRY_KIND, end_run, still_waits
from control_svc.usecases.working import JobContext
from svc_kit.errors import RunNotFound


class RunExpiry:
    """Does the jobs that end waiting runs."""

    kind = EXPIRY_KIND
    concurrency = 8

    def __init__(self, codec: RunEventCodec) -> None:
        self._codec = codec

    async def run(self, claim: Claim, context: JobContext) -> None:
        """End a run, if it still waits as it did when the job was made."""
        await context.finish(lambda tx: self._expire(tx, claim))

    async def bury(self, tx: Transaction, job: Job) -> None:
        """Nothing: the run waits for its client, who can still answer or cancel."""

    async def _expire(self, tx: Transaction, claim: Claim) -> None:
        run_id = claim.subject.split("/")[0]
        try:
            run = await SqlRuns(tx).lock(claim.project, run_id)
        except RunNotFound:  # deleted with its thread
            return
        if not still_waits(run, claim.subject) or not run.is_overdue(await tx.now()):
            return
        events = await end_run(tx, claim.project, run, EXPIRED, {})
        told = [self._codec.encode(event) for event in events]
        await SqlEventStreams(tx).end(claim.project, run.id, told)
