"""CRUD and cancellation of batches; `worker.py` runs them."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import BATCH, JOB, IdSource, is_id
from control_svc.base.pagination import Page, PageRequest, PageTokens
from control_svc.batches.model import Batch, NewBatch, check_input
from control_svc.batches.queries import BatchQueries
from control_svc.db.notifications import Notifications, follow
from control_svc.db.transaction import Transaction, Transactions
from control_svc.files.queries import FileQueries
from control_svc.jobs.model import JobPriority, JobState, NewJob
from control_svc.jobs.queries import JobQueries, JobQueueQueries
from svc_kit.errors import FileNotFound, InvalidField

CREATE: Final = "CreateBatch"
KIND: Final = "batch"
"""The jobs that carry batches out."""
CLOSING_KIND: Final = "batch-closing"
"""The jobs of batches that run no line any more: they wait for none of those that do."""
MAX_PAGE: Final = 100


def job_of(batch_id: str, ids: IdSource, kind: str = KIND) -> NewJob:
    """The job that carries a batch out, or ends it."""
    return NewJob(id=ids.new(JOB), kind=kind, subject=batch_id, priority=JobPriority.BATCH)


class Batches:
    """What callers do with batches."""

    def __init__(
        self,
        transactions: Transactions,
        notifications: Notifications,
        ids: IdSource,
        tokens: PageTokens,
        watch_interval_s: float,
    ) -> None:
        """`watch_interval_s` is how long a watcher misses a notice that got lost."""
        self._transactions = transactions
        self._notifications = notifications
        self._ids = ids
        self._tokens = tokens
        self._watch_interval_s = watch_interval_s

    async def create(self, project: str, request: NewBatch) -> Batch:
        """Begin a batch; its file is checked by its job.

        Raises MissingField, InvalidField, OutOfRange, TooLong, FileNotFound or RequestIdReused.
        """
        request.check()
        batch_id = self._ids.new(BATCH)
        job = job_of(batch_id, self._ids)

        async def add(tx: Transaction) -> Batch:
            batch = request.make(batch_id, await tx.now())
            created = await record_request(tx, project, _request(request, batch))
            if created != batch.id:
                return await BatchQueries(tx).get(project, created)
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
        """Raises BatchNotFound."""
        return await self._transactions.read(lambda tx: BatchQueries(tx).get(project, batch_id))

    async def page(self, project: str, page_request: PageRequest) -> Page[Batch]:
        """A page of the project's batches. Raises OutOfRange or InvalidField."""
        if page_request.after and not is_id(page_request.after, BATCH):
            raise InvalidField(field="after", problem="it is not the id of a batch")
        binding = (project, "batches")
        window = self._tokens.window(page_request, binding, MAX_PAGE)
        found = await self._transactions.read(lambda tx: BatchQueries(tx).page(project, window))
        return self._tokens.page(found, window, page_request, binding)

    async def cancel(self, project: str, batch_id: str) -> Batch:
        """Give a batch up. Raises BatchNotFound or BatchNotCancellable."""

        async def give_up(tx: Transaction) -> Batch:
            await BatchQueries(tx).get(project, batch_id)
            # Lock the job's row first, as the batch's worker does.
            job = await JobQueries(tx).request_cancel(project, KIND, batch_id)
            now = await tx.now()
            if job is not None and job.state is JobState.QUEUED:
                await JobQueueQueries(tx).save(job.expedite(CLOSING_KIND, now))
            found = await BatchQueries(tx).lock(project, batch_id)
            batch = found.cancel(now)
            await BatchQueries(tx).update(project, batch)
            tx.announce(batch_id)
            return batch

        return await self._transactions.write(give_up)

    async def watch(self, project: str, batch_id: str) -> AsyncGenerator[Batch, None]:
        """A batch as it is, and after each change, until it has ended. Raises BatchNotFound."""
        following = follow(
            self._notifications,
            batch_id,
            lambda: self.get(project, batch_id),
            lambda batch: batch.state.is_final,
            self._watch_interval_s,
        )
        async with aclosing(following) as batches:
            async for batch in batches:
                yield batch


def _request(request: NewBatch, batch: Batch) -> IdempotencyRecord:
    return IdempotencyRecord.of(CREATE, request.request_id, batch.id, batch.created_at, request)
