"""Dead letters that begin again: for each kind of job, whether what it worked for can go on.

A subject whose end its client was told stays as it is: others may have gone on from there, with a
new run on the thread or a new response. What can still become what its client wanted begins again:
batches without files, files that could not be read. And so does what no client was told of.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from control_svc.batches import service
from control_svc.batches.worker import retry_batch
from control_svc.db.transaction import Transaction
from control_svc.inference import prefix_cleanup
from control_svc.jobs.model import Job
from control_svc.jobs.service import Retry
from control_svc.responses import worker as responses_worker
from control_svc.runs import worker as runs_worker
from control_svc.runs.queries import RunQueries
from control_svc.runs.transitions import EXPIRY_KIND, still_waits
from control_svc.vector_stores import membership
from control_svc.vector_stores.model import FileState, StoreFile, StoreState, VectorStore
from control_svc.vector_stores.queries import StoreFileQueries, VectorStoreQueries
from control_svc.vector_stores.search.chunk_queries import ChunkQueries
from svc_kit.errors import JobNotRetriable, RunNotFound, VectorStoreNotFound

_PASSAGES_AT_ONCE: Final = 500


async def retry_file(tx: Transaction, job: Job) -> str:
    """Let a file of a vector store be read again, from its beginning: a sweep may have dropped some
    of its passages. Raises JobNotRetriable where it is gone, or in its store anew."""
    project = job.project
    store, file = await _failed_file(tx, job)
    fresh = replace(file, num_chunks=0, usage_bytes=0)
    # The file's row first: a sweep that has locked it drops passages until its transaction ends.
    store = await membership.move(tx, project, store, fresh, FileState.IN_PROGRESS)
    await VectorStoreQueries(tx).update(project, store)
    while await ChunkQueries(tx).drop(project, file.entry, _PASSAGES_AT_ONCE):
        pass
    return job.kind


async def retry_expiry(tx: Transaction, job: Job) -> str:
    """Let a run that still waits expire. Raises JobNotRetriable where it waits no more."""
    run_id = job.subject.split("/")[0]
    try:
        run = await RunQueries(tx).lock(job.project, run_id)
    except RunNotFound:
        raise JobNotRetriable(job=job.id, problem=f"the run '{run_id}' is deleted.") from None
    if not still_waits(run, job.subject):
        problem = f"the run '{run_id}' does not wait any more as it did."
        raise JobNotRetriable(job=job.id, problem=problem)
    return job.kind


async def retry_from_start(_tx: Transaction, job: Job) -> str:
    """What needs nothing but to be tried."""
    return job.kind


async def refuse_retry(_tx: Transaction, job: Job) -> str:
    """Raises JobNotRetriable: the subject failed when its job died, and its client was told."""
    problem = f"the {job.kind} '{job.subject}' failed, as its client was told."
    raise JobNotRetriable(job=job.id, problem=problem)


RETRIES: Final[Mapping[str, Retry]] = {
    service.KIND: retry_batch,
    service.CLOSING_KIND: retry_batch,
    membership.KIND: retry_file,
    prefix_cleanup.KIND: retry_from_start,
    EXPIRY_KIND: retry_expiry,
    runs_worker.KIND: refuse_retry,
    responses_worker.KIND: refuse_retry,
}
"""By kind of job."""


async def _failed_file(tx: Transaction, job: Job) -> tuple[VectorStore, StoreFile]:
    """The file of a job, and its store, locked. Raises JobNotRetriable."""
    gone = JobNotRetriable(job=job.id, problem="its file is in the vector store no more.")
    found = await StoreFileQueries(tx).entry(job.project, job.subject)
    if found is None:
        raise gone
    try:
        store = await VectorStoreQueries(tx).lock(job.project, found.store_id)
    except VectorStoreNotFound:  # deleted meanwhile, with its files
        raise gone from None
    file = await StoreFileQueries(tx).entry(job.project, job.subject)
    if file is None or file.state is not FileState.FAILED:
        raise gone
    if store.state(await tx.now()) is StoreState.EXPIRED:
        raise JobNotRetriable(job=job.id, problem=f"the vector store '{store.id}' has expired.")
    return store, file
