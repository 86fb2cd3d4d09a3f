"""CRUD and cancellation of batches. `worker.py` runs them."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from typing import Final

from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import BATCH, JOB, IdSource, is_id
from control_svc.base.pagination import Page, PageRequest, PageTokens
from control_svc.batches.model import Batch, NewBatch, check_input
from control_svc.batches.queries import BatchQueries, requeue_late_jobs
from control_svc.db.cleanup import Deleted
from control_svc.db.notifications import Notifications, follow
from control_svc.db.transaction import Transaction, Transactions
from control_svc.files.queries import FileQueries
from control_svc.jobs.model import JOBS_TOPIC, JobPriority, JobState, NewJob
from control_svc.jobs.queries import JobQueries, JobQueueQueries
from svc_kit.errors import FileNotFound, InvalidField

CREATE: Final = "CreateBatch"
KIND: Final = "batch"
"""Kind of the jobs that run batches."""
CLOSING_KIND: Final = "batch-closing"
"""Kind of the jobs that only close batches. They do not wait for running batches."""
MAX_PAGE: Final = 100


def new_job(batch_id: str, ids: IdSource, kind: str = KIND) -> NewJob:
    """Create a job for a batch."""
    return NewJob(id=ids.new(JOB), kind=kind, subject=batch_id, priority=JobPriority.BATCH)


class Batches:
    """The operations of BatchService."""

    def __init__(
        self,
        transactions: Transactions,
        notifications: Notifications,
        ids: IdSource,
        tokens: PageTokens,
        watch_interval_s: float,
    ) -> None:
        """`watch_interval_s`: poll interval of `watch`, in case a notification is lost."""
        self._transactions = transactions
        self._notifications = notifications
        self._ids = ids
        self._tokens = tokens
        self._watch_interval_s = watch_interval_s

    async def create(self, project: str, request: NewBatch) -> Batch:
        """Create a batch and its job, which validates the file.

        Raises MissingField, InvalidField, OutOfRange, TooLong, FileNotFound or RequestIdReused.
        """
        request.check()
        batch_id = self._ids.new(BATCH)
        job = new_job(batch_id, self._ids)

        async def add(tx: Transaction) -> Batch:
            batch = request.make(batch_id, await tx.now())
            record = IdempotencyRecord.of(
                CREATE, request.request_id, batch.id, batch.created_at, request
            )
            recorded_id = await record_request(tx, project, record)
            if recorded_id != batch.id:
                return await BatchQueries(tx).get(project, recorded_id)
            try:
                file = await FileQueries(tx).get(project, batch.input_file_id, batch.created_at)
            except FileNotFound as error:
                raise FileNotFound(file=error.file, field="input_file_id") from None
            check_input(file)
            await BatchQueries(tx).add(project, batch)
            await JobQueries(tx).add(project, job)
            return batch

        return await self._transactions.write(add)

    async def get(self, project: str, batch_id: str) -> Batch:
        """Get a batch. Raises BatchNotFound."""
        return await self._transactions.read(lambda tx: BatchQueries(tx).get(project, batch_id))

    async def page(self, project: str, page_request: PageRequest) -> Page[Batch]:
        """List the project's batches, newest first. Raises OutOfRange or InvalidField."""
        if page_request.after and not is_id(page_request.after, BATCH):
            raise InvalidField(field="after", problem="it is not the id of a batch")
        binding = (project, "batches")
        window = self._tokens.window(page_request, binding, MAX_PAGE)
        batches = await self._transactions.read(lambda tx: BatchQueries(tx).page(project, window))
        return self._tokens.page(batches, window, page_request, binding)

    async def cancel(self, project: str, batch_id: str) -> Batch:
        """Start to cancel a batch. Raises BatchNotFound or BatchNotCancellable."""

        async def cancel(tx: Transaction) -> Batch:
            await BatchQueries(tx).get(project, batch_id)
            # The same lock order as in the worker: the job, then the batch.
            job = await JobQueries(tx).request_cancel(project, KIND, batch_id)
            now = await tx.now()
            if job is not None and job.state is JobState.QUEUED:
                await JobQueueQueries(tx).save(job.expedite(CLOSING_KIND, now))
            batch = (await BatchQueries(tx).lock(project, batch_id)).cancel(now)
            await BatchQueries(tx).update(project, batch)
            tx.announce(batch_id)
            return batch

        return await self._transactions.write(cancel)

    async def watch(self, project: str, batch_id: str) -> AsyncGenerator[Batch, None]:
        """Yield the batch now and after each change until its end. Raises BatchNotFound."""
        changes = follow(
            self._notifications,
            batch_id,
            lambda: self.get(project, batch_id),
            lambda batch: batch.state.is_final,
            self._watch_interval_s,
        )
        async with aclosing(changes) as batches:
            async for batch in batches:
                yield batch


async def expedite_late_batches(tx: Transaction, now: datetime) -> Deleted:
    """Close queued batches past their deadline without waiting for others. A step of the sweeper,
    which deletes nothing.
    """
    if await requeue_late_jobs(tx, now, KIND, CLOSING_KIND):
        tx.announce(JOBS_TOPIC)
    return Deleted(0)
