"""Adds files to vector stores and removes them, with their jobs and counts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from control_svc.base.ids import JOB, VECTOR_STORE_ENTRY, IdSource
from control_svc.db.transaction import Clock, Transaction
from control_svc.files.queries import FileQueries
from control_svc.jobs.model import Job, JobPriority, NewJob
from control_svc.jobs.queries import JobQueries
from control_svc.vector_stores.model import (
    FileProblem,
    FileState,
    NewStoreFile,
    StoreFile,
    StoreState,
    VectorStore,
)
from control_svc.vector_stores.queries import StoreFileQueries, VectorStoreQueries
from control_svc.vector_stores.search.chunk_queries import ChunkQueries
from svc_kit.errors import EmbeddingModelMissing, JobNotRetriable, VectorStoreNotFound

KIND: Final = "vector-file"
ADD_MODEL: Final = "corral up --embedding-model FILE.gguf"
_RETRIED_STATES: Final = (FileState.FAILED, FileState.CANCELLED)
"""States of files that are ingested again when they are added again."""


class FileAdder:
    def __init__(self, ids: IdSource, clock: Clock, embedding_model: str | None) -> None:
        """If `embedding_model` is None, no files can be added."""
        self._ids = ids
        self._clock = clock
        self.embedding_model = embedding_model

    def check_model(self) -> str:
        """Return the embedding model. Raises EmbeddingModelMissing."""
        if self.embedding_model is None:
            raise EmbeddingModelMissing(command=ADD_MODEL)
        return self.embedding_model

    async def add(
        self,
        tx: Transaction,
        store_id: str,
        files: Sequence[NewStoreFile],
        batch_id: str | None = None,
        field: str = "file_id",
    ) -> list[StoreFile]:
        """Add files to a store. Files that it already contains with the same parameters are kept
        and join the batch, unless they failed or were cancelled. `field` has the ids of the files.

        Raises VectorStoreNotFound, VectorStoreExpired or FileNotFound.
        """
        store = await VectorStoreQueries(tx).lock(store_id)
        now = self._clock()
        store.check_not_expired(now)
        store = store.touch(now)
        file_ids = [file.file_id for file in files]
        await FileQueries(tx).find(((field, file_id) for file_id in file_ids), now)
        rows = await StoreFileQueries(tx).find(store_id, file_ids)
        added, joining, replaced = [], [], []
        for file in files:
            row = rows.get(file.file_id)
            if row is not None and _can_keep(row, file):
                if batch_id is not None:
                    row = replace(row, batch_id=batch_id)
                    joining.append(row)
                    rows[file.file_id] = row
                continue
            if row is not None:
                replaced.append(row)
            row = file.make(self._ids.new(VECTOR_STORE_ENTRY), store_id, batch_id, now)
            store = store.update_counts(row, None)
            rows[file.file_id] = row
            added.append(row)
        # At once: for 2000 files, single statements would block other writers for seconds.
        store = await set_file_states(tx, store, replaced, FileState.DELETED)
        await StoreFileQueries(tx).update(*joining)
        await StoreFileQueries(tx).add(added)
        await JobQueries(tx).add_all([self._new_job(row) for row in added])
        await VectorStoreQueries(tx).update(store)
        tx.announce(store_id)
        return [rows[file_id] for file_id in file_ids]

    def _new_job(self, file: StoreFile) -> NewJob:
        return NewJob(
            id=self._ids.new(JOB), kind=KIND, subject=file.entry, priority=JobPriority.NORMAL
        )


def _can_keep(row: StoreFile, request: NewStoreFile) -> bool:
    is_same = row.chunking == request.chunking and row.attributes == request.attributes
    return is_same and row.state not in _RETRIED_STATES


async def set_file_state(
    tx: Transaction,
    store: VectorStore,
    file: StoreFile,
    state: FileState,
    problem: FileProblem | None = None,
) -> VectorStore:
    """Set the state of a file in a locked store. Returns the store, which must be updated."""
    return await set_file_states(tx, store, [file], state, problem)


async def set_file_states(
    tx: Transaction,
    store: VectorStore,
    files: Sequence[StoreFile],
    state: FileState,
    problem: FileProblem | None = None,
) -> VectorStore:
    """Set the state of files in a locked store. Returns the store, which must be updated."""
    changed = [replace(file, state=state, problem=problem) for file in files]
    tx.announce(store.id)
    await StoreFileQueries(tx).update(*changed)
    for before, after in zip(files, changed, strict=True):
        store = store.update_counts(after, before.state)
    return store


async def remove_file_from_stores(tx: Transaction, file_id: str) -> None:
    """Remove a deleted file from all stores."""
    for store_id in await StoreFileQueries(tx).list_stores(file_id):
        await remove_files(tx, store_id, [file_id])


async def remove_files(tx: Transaction, store_id: str, file_ids: Sequence[str]) -> None:
    """Remove those of the files that are in a store. Raises VectorStoreNotFound."""
    store = await VectorStoreQueries(tx).lock(store_id)
    files = await StoreFileQueries(tx).find(store_id, file_ids)
    store = await set_file_states(tx, store, [*files.values()], FileState.DELETED)
    await VectorStoreQueries(tx).update(store)


_DELETED_CHUNKS: Final = 500
"""Chunks that are deleted by one statement."""


async def retry_file(tx: Transaction, job: Job) -> str:
    """Reset the file of a dead job, so that it is ingested again. Returns the kind of job.

    Ingestion starts over, because the sweeper may have deleted some chunks. Raises JobNotRetriable
    if the file was removed or added again.
    """
    store, file = await _failed_file(tx, job)
    fresh = replace(file, num_chunks=0, usage_bytes=0)
    # Update the row of the file first, to wait for a sweep that has locked it.
    store = await set_file_state(tx, store, fresh, FileState.IN_PROGRESS)
    await VectorStoreQueries(tx).update(store)
    while await ChunkQueries(tx).delete(file.entry, _DELETED_CHUNKS):
        pass
    return job.kind


async def _failed_file(tx: Transaction, job: Job) -> tuple[VectorStore, StoreFile]:
    """Lock the store of a job's file. Returns both. Raises JobNotRetriable."""
    removed = JobNotRetriable(job=job.id, problem="its file is no longer in the vector store.")
    file = await StoreFileQueries(tx).get(job.subject)
    if file is None:
        raise removed
    try:
        store = await VectorStoreQueries(tx).lock(file.store_id)
    except VectorStoreNotFound:  # deleted in the meantime, with its files
        raise removed from None
    file = await StoreFileQueries(tx).get(job.subject)
    if file is None or file.state is not FileState.FAILED:
        raise removed
    if store.state(await tx.now()) is StoreState.EXPIRED:
        raise JobNotRetriable(job=job.id, problem=f"the vector store '{store.id}' has expired.")
    return store, file
