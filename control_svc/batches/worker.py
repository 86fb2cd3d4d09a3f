"""The job handler of batches: read the file, run lines, close, write files; each can resume."""

from control_svc.base.ids import IdSource
from control_svc.batches.executor import BatchRunner
from control_svc.batches.input_file import BatchReader, drop_lines
from control_svc.batches.model import Batch, BatchState, LineProblem
from control_svc.batches.output import BatchWriter
from control_svc.batches.queries import BatchLineQueries, BatchQueries
from control_svc.batches.service import CLOSING_KIND, KIND, job_of
from control_svc.db.transaction import Transaction
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import Claim, Job
from control_svc.jobs.queries import JobQueries
from svc_kit.errors import JobNotRetriable


class BatchHandler:
    """Does the jobs of batches."""

    def __init__(
        self,
        kind: str,
        reader: BatchReader,
        runner: BatchRunner,
        writer: BatchWriter,
        ids: IdSource,
        concurrency: int,
    ) -> None:
        """`concurrency` is how many jobs of this kind run at a time in this process."""
        self.kind = kind
        self._ids = ids
        self.concurrency = concurrency
        self._reader = reader
        self._runner = runner
        self._writer = writer

    async def run(self, claim: Claim, context: JobContext) -> None:
        """Carry a batch out, or what is left of it."""
        batch = await self._current(context)
        if batch.state is BatchState.VALIDATING:
            batch = await self._reader.read(batch, context)
        if batch.state is BatchState.IN_PROGRESS:
            await self._runner.run(batch, context)
        batch = await self._close(context)
        if not batch.state.is_final:
            await self._writer.write(batch, context)
        elif batch.state is BatchState.FAILED:
            await drop_lines(batch, context)

    async def on_dead(self, tx: Transaction, job: Job) -> None:
        """End the batch whose job is dead: at once, or by a job of its own where lines have run."""
        batch = await BatchQueries(tx).lock(job.project, job.subject)
        reason, message = job.error or ("internal", "")
        problem = LineProblem(reason.lower(), message)
        is_last = self.kind == CLOSING_KIND
        abandoned = batch.abandon(problem, await tx.now(), is_last=is_last)
        await BatchQueries(tx).update(job.project, abandoned)
        tx.announce(batch.id)
        if not abandoned.state.is_final:
            await BatchLineQueries(tx).close(job.project, batch.id, batch.abandoned_lines)
            await JobQueries(tx).add(job.project, job_of(batch.id, self._ids, CLOSING_KIND))

    async def _current(self, context: JobContext) -> Batch:
        claim = context.claim
        return await context.write(lambda tx: BatchQueries(tx).lock(claim.project, claim.subject))

    async def _close(self, context: JobContext) -> Batch:
        """From here on no line runs; what is pending never will."""
        claim = context.claim

        async def close(tx: Transaction) -> Batch:
            found = await BatchQueries(tx).lock(claim.project, claim.subject)
            if found.state.is_final:
                return found
            await BatchLineQueries(tx).close(claim.project, found.id, found.unrun)
            closed = found.close(await tx.now())
            await BatchQueries(tx).update(claim.project, closed)
            tx.announce(found.id)
            return closed

        return await context.write(close, progress=True)


async def retry_batch(tx: Transaction, job: Job) -> str:
    """Reopen the batch of a dead job, and return the kind of job that it needs. Raises
    JobNotRetriable.
    """
    project, batch_id = job.project, job.subject
    batch = await BatchQueries(tx).lock(project, batch_id)
    if not batch.can_begin_again:
        problem = f"the batch '{batch_id}' is {batch.state.value}, with its files."
        raise JobNotRetriable(job=job.id, problem=problem)
    reopened = await BatchLineQueries(tx).reopen(project, batch_id)
    revived = batch.revive(reopened)
    await BatchQueries(tx).update(project, revived)
    tx.announce(batch_id)
    return CLOSING_KIND if revived.state is BatchState.CANCELLING else KIND
