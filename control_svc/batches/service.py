"""CRUD and cancellation of batches. `worker.py` runs them."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from corral.control.v1 import batch_pb2
from corral.control.v1 import batch_service_pb2 as pb

from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import BATCH, JOB, IdSource
from control_svc.base.resource import Filters, Resource
from control_svc.base.validation import check_text
from control_svc.batches.model import Batch, NewBatch, check_input
from control_svc.batches.queries import BatchQueries, requeue_late_jobs
from control_svc.batches.tables import BatchRow
from control_svc.db.cleanup import Deleted
from control_svc.db.notifications import Notifications, follow
from control_svc.db.transaction import CrossProjectTransaction, Transaction, write_transaction
from control_svc.files.queries import FileQueries
from control_svc.jobs.model import JOBS_TOPIC, JobPriority, JobState, NewJob
from control_svc.jobs.queries import JobQueries
from svc_kit.rpc.message_mapper import MessageMapper

CREATE: Final = "CreateBatch"
KIND: Final = "batch"
"""Kind of the jobs that run batches."""
CLOSING_KIND: Final = "batch-closing"
"""Kind of the jobs that only close batches. They do not wait for running batches."""


def new_job(batch_id: str, ids: IdSource, kind: str = KIND) -> NewJob:
    return NewJob(id=ids.new(JOB), kind=kind, subject=batch_id, priority=JobPriority.BATCH)


_NEW_BATCH: Final = MessageMapper(
    NewBatch, pb.CreateBatchRequest, renamed={"window": "completion_window"}
)
_BATCH: Final = MessageMapper(
    Batch,
    batch_pb2.Batch,
    renamed={"window": "completion_window", "problems": "errors", "counts": "request_counts"},
)


@dataclass(frozen=True)
class Batches(Resource[Batch, NewBatch]):
    service = pb.DESCRIPTOR.services_by_name["BatchService"]
    message, queries, noun, plural = _BATCH, BatchQueries, "a batch", "batches"

    notifications: Notifications
    watch_interval_s: float
    """Poll interval of `WatchBatch`, in case a notification is lost."""

    @write_transaction
    async def CreateBatch(self, tx: Transaction, request: pb.CreateBatchRequest) -> Batch:
        """Create a batch, at the time of the database, and its job, which validates the file.

        Raises MissingField, InvalidField, OutOfRange, TooLong, FileNotFound or RequestIdReused.
        """
        new = _NEW_BATCH.from_message(request)
        new.check()
        batch = new.make(self.ids.new(BATCH), await tx.now())
        record = IdempotencyRecord.of(CREATE, new.request_id, batch.id, batch.created_at, new)
        recorded_id = await record_request(tx, record)
        if recorded_id != batch.id:
            return await BatchQueries(tx).get(recorded_id)
        file_id, now = batch.input_file_id, batch.created_at
        check_input(await FileQueries(tx).get(file_id, now, "input_file_id"))
        await BatchQueries(tx).add(batch)
        await JobQueries(tx).add(new_job(batch.id, self.ids))
        return batch

    def filters(self, request: pb.ListBatchesRequest) -> Filters:
        """Batches of an endpoint. Raises InvalidField or TooLong."""
        if not request.endpoint:
            return [""], []
        endpoint = check_text("endpoint", request.endpoint)
        return [endpoint], [BatchRow.endpoint == endpoint]

    @write_transaction
    async def CancelBatch(self, tx: Transaction, request: pb.CancelBatchRequest) -> Batch:
        """Start to cancel a batch. Raises BatchNotFound or BatchNotCancellable."""
        batch_id = request.batch_id
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

    async def before_delete(self, tx: Transaction, current: Batch) -> None:
        """Its files stay. Raises BatchNotEnded."""
        current.check_ended()

    def WatchBatch(
        self, project: str, request: pb.WatchBatchRequest
    ) -> AsyncGenerator[Batch, None]:
        """Yield a batch now and after each change until its end. Raises BatchNotFound."""
        return follow(
            self.notifications,
            request.batch_id,
            lambda: self.get(project, request),
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
