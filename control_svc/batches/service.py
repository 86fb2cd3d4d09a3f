"""CRUD and cancellation of batches. `worker.py` runs them."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import BATCH, JOB, IdSource
from control_svc.base.pagination import Page, PageRequest, PageTokens
from control_svc.batches.model import Batch, NewBatch, check_input
from control_svc.batches.queries import BatchQueries, requeue_late_jobs
from control_svc.batches.tables import BatchRow
from control_svc.db.cleanup import Deleted
from control_svc.db.notifications import Notifications, follow
from control_svc.db.transaction import (
    CrossProjectTransaction,
    Transaction,
    Transactions,
    delete_transaction,
    read_transaction,
    write_transaction,
)
from control_svc.files.queries import FileQueries
from control_svc.jobs.model import JOBS_TOPIC, JobPriority, JobState, NewJob
from control_svc.jobs.queries import JobQueries

CREATE: Final = "CreateBatch"
KIND: Final = "batch"
"""Kind of the jobs that run batches."""
CLOSING_KIND: Final = "batch-closing"
"""Kind of the jobs that only close batches. They do not wait for running batches."""
MAX_PAGE: Final = 100


def new_job(batch_id: str, ids: IdSource, kind: str = KIND) -> NewJob:
    """Create a job for a batch."""
    return NewJob(id=ids.new(JOB), kind=kind, subject=batch_id, priority=JobPriority.BATCH)


@dataclass(frozen=True)
class Batches:
    """The operations of BatchService."""

    transactions: Transactions
    notifications: Notifications
    ids: IdSource
    tokens: PageTokens
    watch_interval_s: float
    """Poll interval of `watch`, in case a notification is lost."""

    @write_transaction
    async def create(self, tx: Transaction, request: NewBatch) -> Batch:
        """Create a batch and its job, which validates the file.

        Raises MissingField, InvalidField, OutOfRange, TooLong, FileNotFound or RequestIdReused.
        """
        request.check()
        batch = request.make(self.ids.new(BATCH), await tx.now())
        record = IdempotencyRecord.of(
            CREATE, request.request_id, batch.id, batch.created_at, request
        )
        recorded_id = await record_request(tx, record)
        if recorded_id != batch.id:
            return await BatchQueries(tx).get(recorded_id)
        file_id, now = batch.input_file_id, batch.created_at
        check_input(await FileQueries(tx).get(file_id, now, "input_file_id"))
        await BatchQueries(tx).add(batch)
        await JobQueries(tx).add(new_job(batch.id, self.ids))
        return batch

    @read_transaction
    async def get(self, tx: Transaction, batch_id: str) -> Batch:
        """Get a batch. Raises BatchNotFound."""
        return await BatchQueries(tx).get(batch_id)

    @read_transaction
    async def page(
        self, tx: Transaction, page_request: PageRequest, endpoint: str = ""
    ) -> Page[Batch]:
        """List the project's batches, newest first, those of all endpoints if `endpoint` is empty.

        Raises OutOfRange or InvalidField.
        """
        page_request.check_cursors(BATCH, "a batch")
        window = self.tokens.window(page_request, (tx.project, "batches", endpoint), MAX_PAGE)
        conditions = [BatchRow.endpoint == endpoint] if endpoint else []
        return window.page(await BatchQueries(tx).page(window, *conditions))

    @write_transaction
    async def cancel(self, tx: Transaction, batch_id: str) -> Batch:
        """Start to cancel a batch. Raises BatchNotFound or BatchNotCancellable."""
        await BatchQueries(tx).get(batch_id)
        # The same lock order as in the worker: the job, then the batch.
        job = await JobQueries(tx).request_cancel(KIND, batch_id)
        now = await tx.now()
        if job is not None and job.state is JobState.QUEUED:
            await JobQueries(tx).save(job.expedite(CLOSING_KIND, now))
        batch = (await BatchQueries(tx).lock(batch_id)).cancel(now)
        await BatchQueries(tx).update(batch)
        tx.announce(batch_id)
        return batch

    @delete_transaction
    async def delete(self, tx: Transaction, batch_id: str) -> None:
        """Delete a batch that has ended, without its files. Raises BatchNotFound or
        BatchNotEnded."""
        (await BatchQueries(tx).lock(batch_id)).check_ended()
        await BatchQueries(tx).delete(batch_id)

    def watch(self, project: str, batch_id: str) -> AsyncGenerator[Batch, None]:
        """Yield the batch now and after each change until its end. Raises BatchNotFound."""
        return follow(
            self.notifications,
            batch_id,
            lambda: self.get(project, batch_id),
            lambda batch: batch.state.is_final,
            self.watch_interval_s,
        )


async def expedite_late_batches(tx: CrossProjectTransaction, now: datetime) -> Deleted:
    """Close queued batches past their deadline without waiting for others. A step of the sweeper,
    which deletes nothing.
    """
    if await requeue_late_jobs(tx, now, KIND, CLOSING_KIND):
        tx.announce(JOBS_TOPIC)
    return Deleted(0)
