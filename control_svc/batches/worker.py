"""The job handler of batches: read the file, run lines, close, write files. Every step resumes."""

from dataclasses import dataclass

from control_svc.base.ids import IdSource
from control_svc.batches.executor import BatchRunner
from control_svc.batches.input_file import BatchReader, delete_lines
from control_svc.batches.model import Batch, BatchState, LineProblem
from control_svc.batches.output import BatchWriter
from control_svc.batches.queries import BatchLineQueries, BatchQueries
from control_svc.batches.service import CLOSING_KIND, KIND, new_job
from control_svc.db.transaction import Transaction
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import Claim, Job
from control_svc.jobs.queries import JobQueries
from svc_kit.errors import JobNotRetriable


@dataclass(frozen=True)
class BatchHandler:
    kind: str
    reader: BatchReader
    runner: BatchRunner
    writer: BatchWriter
    ids: IdSource
    concurrency: int
    """Maximum number of jobs of this kind that run in this process."""

    async def run(self, claim: Claim, context: JobContext) -> None:
        """Run a batch, or resume it."""
        batch = await context.write(lambda tx: BatchQueries(tx).lock(claim.subject))
        if batch.state is BatchState.VALIDATING:
            batch = await self.reader.read(batch, context)
        if batch.state is BatchState.IN_PROGRESS:
            await self.runner.run(batch, context)
        batch = await self._close(context)
        if not batch.state.is_final:
            await self.writer.write(batch, context)
        elif batch.state is BatchState.FAILED:
            await delete_lines(batch, context)

    async def on_dead(self, tx: Transaction, job: Job) -> None:
        """End the batch of a dead job: at once, or with a closing job if lines have run."""
        batch = await BatchQueries(tx).lock(job.subject)
        reason, message = job.error or ("internal", "")
        problem = LineProblem(reason.lower(), message)
        is_last = self.kind == CLOSING_KIND
        abandoned = batch.abandon(problem, await tx.now(), is_last=is_last)
        await BatchQueries(tx).update(abandoned)
        tx.announce(batch.id)
        if not abandoned.state.is_final:
            await BatchLineQueries(tx).close(batch.id, batch.abandoned_line_state)
            await JobQueries(tx).add(new_job(batch.id, self.ids, CLOSING_KIND))

    async def _close(self, context: JobContext) -> Batch:
        """End the pending lines: no line runs after this."""
        claim = context.claim

        async def close(tx: Transaction) -> Batch:
            batch = await BatchQueries(tx).lock(claim.subject)
            if batch.state.is_final:
                return batch
            await BatchLineQueries(tx).close(batch.id, batch.unrun_line_state)
            batch = batch.close(await tx.now())
            await BatchQueries(tx).update(batch)
            tx.announce(batch.id)
            return batch

        return await context.write(close, progress=True)


async def retry_batch(tx: Transaction, job: Job) -> str:
    """Reopen the batch of a dead job and return the kind of job that it needs.

    Raises JobNotRetriable.
    """
    batch_id = job.subject
    batch = await BatchQueries(tx).lock(batch_id)
    if not batch.can_reopen:
        problem = f"batch '{batch_id}' is {batch.state.value} and has its files."
        raise JobNotRetriable(job=job.id, problem=problem)
    batch = batch.reopen(await BatchLineQueries(tx).reopen(batch_id))
    await BatchQueries(tx).update(batch)
    tx.announce(batch_id)
    return CLOSING_KIND if batch.state is BatchState.CANCELLING else KIND
