"""The work of a batch's job: read, run, close, write, each going on where an attempt broke off."""

from control_svc.domain.batches import Batch, BatchState, LineProblem
from control_svc.domain.ids import IdSource
from control_svc.domain.jobs import Claim, Job
from control_svc.storage.repositories.batches import SqlBatches, SqlBatchLines
from control_svc.storage.repositories.jobs import SqlJobs
from control_svc.storage.unit_of_work import Transaction
from control_svc.usecases.batch_reading import BatchReader, drop_lines
from control_svc.usecases.batch_running import BatchRunner
from control_svc.usecases.batch_writing import BatchWriter
from control_svc.usecases.batches import CLOSING_KIND, KIND, job_of
from control_svc.usecases.working import JobContext
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

    async def bury(self, tx: Transaction, job: Job) -> None:
        """End the batch whose job is dead: at once, or by a job of its own where lines have run."""
        batch = await SqlBatches(tx).lock(job.project, job.subject)
        reason, message = job.error or ("internal", "")
        problem = LineProblem(reason.lower(), message)
        is_last = self.kind == CLOSING_KIND
        abandoned = batch.abandon(problem, await tx.now(), is_last=is_last)
        await SqlBatches(tx).update(job.project, abandoned)
        tx.announce(batch.id)
        if not abandoned.state.is_final:
            await SqlBatchLines(tx).close(job.project, batch.id, batch.abandoned_lines)
            await SqlJobs(tx).add(job.project, job_of(batch.id, self._ids, CLOSING_KIND))

    async def _current(self, context: JobContext) -> Batch:
        claim = context.claim
        return await context.write(lambda tx: SqlBatches(tx).lock(claim.project, claim.subject))

    async def _close(self, context: JobContext) -> Batch:
        """From here on no line runs; what is pending never will."""
        claim = context.claim

        async def close(tx: Transaction) -> Batch:
            found = await SqlBatches(tx).lock(claim.project, claim.subject)
            if found.state.is_final:
                return found
            await SqlBatchLines(tx).close(claim.project, found.id, found.unrun)
            closed = found.close(await tx.now())
            await SqlBatches(tx).update(claim.project, closed)
            tx.announce(found.id)
            return closed

        return await context.write(close, progress=True)


async def revive_batch(tx: Transaction, job: Job) -> str:
    """Bring the batch of a dead job back to where it can go on, and return the kind of job that it
    needs. Raises JobNotRetriable."""
    project, batch_id = job.project, job.subject
    batch = await SqlBatches(tx).lock(project, batch_id)
    if not batch.can_begin_again:
        problem = f"the batch '{batch_id}' is {batch.state.value}, with its files."
        raise JobNotRetriable(job=job.id, problem=problem)
    reopened = await SqlBatchLines(tx).reopen(project, batch_id)
    revived = batch.revive(reopened)
    await SqlBatches(tx).update(project, revived)
    tx.announce(batch_id)
    return CLOSING_KIND if revived.state is BatchState.CANCELLING else KIND
