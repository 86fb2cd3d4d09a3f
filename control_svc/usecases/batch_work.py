"""The work of a batch's job: read, run, close, write, each going on where an attempt broke off."""

from control_svc.domain.batches import Batch, BatchState, LineProblem, LineState
from control_svc.domain.ids import IdSource
from control_svc.domain.jobs import Claim, Job
from control_svc.domain.ports import Repositories
from control_svc.usecases.batch_reading import BatchReader, drop_lines
from control_svc.usecases.batch_running import BatchRunner
from control_svc.usecases.batch_writing import BatchWriter
from control_svc.usecases.batches import KIND, job_of
from control_svc.usecases.working import JobContext


class BatchHandler:
    """Does the jobs of batches."""

    kind = KIND

    def __init__(
        self,
        reader: BatchReader,
        runner: BatchRunner,
        writer: BatchWriter,
        ids: IdSource,
        concurrency: int,
    ) -> None:
        """`concurrency` is how many batches run at a time in this process."""
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

    async def bury(self, repositories: Repositories, job: Job) -> None:
        """Fail the batch whose job is dead; where lines have run, once another job has written
        their files."""
        batch = await repositories.batches.lock(job.project, job.subject)
        reason, message = job.error or ("internal", "")
        problem = LineProblem(reason.lower(), message)
        abandoned = batch.abandon(problem, await repositories.now())
        await repositories.batches.update(job.project, abandoned)
        repositories.announce(batch.id)
        if not abandoned.state.is_final:
            await repositories.batch_lines.close(job.project, batch.id, LineState.ABANDONED)
            await repositories.jobs.add(job.project, job_of(batch.id, self._ids))

    async def _current(self, context: JobContext) -> Batch:
        claim = context.claim
        return await context.write(
            lambda repositories: repositories.batches.lock(claim.project, claim.subject)
        )

    async def _close(self, context: JobContext) -> Batch:
        """From here on no line runs; what is pending never will."""
        claim = context.claim

        async def close(repositories: Repositories) -> Batch:
            found = await repositories.batches.lock(claim.project, claim.subject)
            if found.state.is_final:
                return found
            await repositories.batch_lines.close(claim.project, found.id, found.unrun)
            closed = found.close(await repositories.now())
            await repositories.batches.update(claim.project, closed)
            repositories.announce(found.id)
            return closed

        return await context.write(close, progress=True)
