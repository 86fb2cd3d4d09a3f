"""Dead letters that begin again: for each kind of job, whether what it worked for can go on.

A subject whose end its client was told stays as it is: others may have gone on from there, with a
new run on the thread or a new response. What can still become what its client wanted begins again:
batches without files, files that could not be read. And so does what no client was told of.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from control_svc.domain.jobs import Job
from control_svc.domain.vector_stores import FileState, StoreFile, StoreState, VectorStore
from control_svc.storage.repositories.chunks import SqlChunks
from control_svc.storage.repositories.runs import SqlRuns
from control_svc.storage.repositories.vector_stores import SqlStoreFiles, SqlVectorStores
from control_svc.storage.unit_of_work import Transaction
from control_svc.usecases import archives, batches, response_work, run_work, vector_adding
from control_svc.usecases.batch_work import revive_batch
from control_svc.usecases.jobs import Revive
from control_svc.usecases.run_ending import EXPIRY_KIND, still_waits
from svc_kit.errors import JobNotRetriable, RunNotFound, VectorStoreNotFound

_PASSAGES_AT_ONCE: Final = 500


async def revive_file(tx: Transaction, job: Job) -> str:
    """Let a file of a vector store be read again, from its beginning: a sweep may have dropped some
    of its passages. Raises JobNotRetriable where it is gone, or in its store anew."""
    project = job.project
    store, file = await _failed_file(tx, job)
    fresh = replace(file, num_chunks=0, usage_bytes=0)
    # The file's row first: a sweep that has locked it drops passages until its transaction ends.
    store = await vector_adding.move(tx, project, store, fresh, FileState.IN_PROGRESS)
    await SqlVectorStores(tx).update(project, store)
    while await SqlChunks(tx).drop(project, file.entry, _PASSAGES_AT_ONCE):
        pass
    return job.kind


async def revive_expiry(tx: Transaction, job: Job) -> str:
    """Let a run that still waits expire. Raises JobNotRetriable where it waits no more."""
    run_id = job.subject.split("/")[0]
    try:
        run = await SqlRuns(tx).lock(job.project, run_id)
    except RunNotFound:
        raise JobNotRetriable(job=job.id, problem=f"the run '{run_id}' is deleted.") from None
    if not still_waits(run, job.subject):
        problem = f"the run '{run_id}' does not wait any more as it did."
        raise JobNotRetriable(job=job.id, problem=problem)
    return job.kind


async def begin_again(_tx: Transaction, job: Job) -> str:
    """What needs nothing but to be tried."""
    return job.kind


async def refuse(_tx: Transaction, job: Job) -> str:
    """Raises JobNotRetriable: the subject failed when its job died, and its client was told."""
    problem = f"the {job.kind} '{job.subject}' failed, as its client was told."
    raise JobNotRetriable(job=job.id, problem=problem)


REVIVERS: Final[Mapping[str, Revive]] = {
    batches.KIND: revive_batch,
    batches.CLOSING_KIND: revive_batch,
    vector_adding.KIND: revive_file,
    archives.KIND: begin_again,
    EXPIRY_KIND: revive_expiry,
    run_work.KIND: refuse,
    response_work.KIND: refuse,
}
"""By kind of job."""


async def _failed_file(tx: Transaction, job: Job) -> tuple[VectorStore, StoreFile]:
    """The file of a job, and its store, locked. Raises JobNotRetriable."""
    gone = JobNotRetriable(job=job.id, problem="its file is in the vector store no more.")
    found = await SqlStoreFiles(tx).entry(job.project, job.subject)
    if found is None:
        raise gone
    try:
        store = await SqlVectorStores(tx).lock(job.project, found.store_id)
    except VectorStoreNotFound:  # deleted meanwhile, with its files
        raise gone from None
    file = await SqlStoreFiles(tx).entry(job.project, job.subject)
    if file is None or file.state is not FileState.FAILED:
        raise gone
    if store.state(await tx.now()) is StoreState.EXPIRED:
        raise JobNotRetriable(job=job.id, problem=f"the vector store '{store.id}' has expired.")
    return store, file
