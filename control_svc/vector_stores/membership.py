"""Adds files to vector stores and removes them, with their jobs and counts, in a caller's
transaction.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
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
from svc_kit.errors import EmbeddingModelMissing, FileNotFound, JobNotRetriable, VectorStoreNotFound

KIND: Final = "vector-file"
ADD_MODEL: Final = "corral up --embedding-model FILE.gguf"
_AGAIN: Final = (FileState.FAILED, FileState.CANCELLED)
"""States from which a file that is put into its store again begins anew."""


class FileAdder:
    """Puts files into stores."""

    def __init__(self, ids: IdSource, clock: Clock, embedding_model: str | None) -> None:
        """`embedding_model` None: the installation has none, and nothing can be added."""
        self._ids = ids
        self._clock = clock
        self.embedding_model = embedding_model

    def check_model(self) -> str:
        """The embedding model. Raises EmbeddingModelMissing."""
        if self.embedding_model is None:
            raise EmbeddingModelMissing(command=ADD_MODEL)
        return self.embedding_model

    async def add(
        self,
        tx: Transaction,
        project: str,
        store_id: str,
        files: Sequence[NewStoreFile],
        batch_id: str | None = None,
    ) -> list[StoreFile]:
        """The files in the store: those that were there just so, and have not failed, as they were,
        now of this batch; any others anew.

        Raises VectorStoreNotFound, VectorStoreExpired or FileNotFound.
        """
        store = await VectorStoreQueries(tx).lock(project, store_id)
        now = self._clock()
        store.check_alive(now)
        store = store.used(now)
        wanted = [file.file_id for file in files]
        there = await StoreFileQueries(tx).find(project, store_id, wanted)
        added = []
        for file in files:
            await _check_there(tx, project, file.file_id, now)
            old = there.get(file.file_id)
            if old is not None and _is_there(old, file):
                there[file.file_id] = await _joined(tx, project, old, batch_id)
                continue
            if old is not None:
                store = await remove_file(tx, project, store, old)
            entry = self._ids.new(VECTOR_STORE_ENTRY)
            new = file.make(entry, store_id, batch_id, now)
            there[file.file_id] = new
            store = store.moved(new, None)
            added.append(new)
        # Together: one by one, two thousand would keep all other writers waiting for seconds.
        await StoreFileQueries(tx).add(project, added)
        await JobQueries(tx).add_all(project, [self._job_of(new) for new in added])
        await VectorStoreQueries(tx).update(project, store)
        tx.announce(store_id)
        return [there[file_id] for file_id in wanted]

    def _job_of(self, file: StoreFile) -> NewJob:
        return NewJob(
            id=self._ids.new(JOB), kind=KIND, subject=file.entry, priority=JobPriority.NORMAL
        )


def _is_there(old: StoreFile, request: NewStoreFile) -> bool:
    """Whether a file of a store matches the request."""
    is_same = old.chunking == request.chunking and old.attributes == request.attributes
    return is_same and old.state not in _AGAIN


async def _joined(
    tx: Transaction, project: str, file: StoreFile, batch_id: str | None
) -> StoreFile:
    if batch_id is None:
        return file
    joined = replace(file, batch_id=batch_id)
    await StoreFileQueries(tx).update(project, joined)
    return joined


async def _check_there(tx: Transaction, project: str, file_id: str, now: datetime) -> None:
    try:
        await FileQueries(tx).get(project, file_id, now)
    except FileNotFound as error:
        raise FileNotFound(file=error.file, field="file_id") from None


async def move(
    tx: Transaction,
    project: str,
    store: VectorStore,
    file: StoreFile,
    state: FileState,
    problem: FileProblem | None = None,
) -> VectorStore:
    """Give a file of a locked store another state; the store as it is then, not yet kept."""
    moved = replace(file, state=state, problem=problem)
    tx.announce(store.id)
    await StoreFileQueries(tx).update(project, moved)
    return store.moved(moved, file.state)


async def remove_file(
    tx: Transaction, project: str, store: VectorStore, file: StoreFile
) -> VectorStore:
    """Take a file out of a locked store; the store as it is then, not yet kept."""
    return await move(tx, project, store, file, FileState.DELETED)


async def remove_from_all(tx: Transaction, project: str, file_id: str) -> None:
    """Take a file that is gone out of every store."""
    for store_id in await StoreFileQueries(tx).stores_of(project, file_id):
        store = await VectorStoreQueries(tx).lock(project, store_id)
        found = await StoreFileQueries(tx).find(project, store_id, [file_id])
        for file in found.values():
            store = await remove_file(tx, project, store, file)
        await VectorStoreQueries(tx).update(project, store)


_PASSAGES_AT_ONCE: Final = 500


async def retry_file(tx: Transaction, job: Job) -> str:
    """Let a file of a vector store be read again, from its beginning: a sweep may have dropped some
    of its passages. Raises JobNotRetriable where it is gone, or in its store anew."""
    project = job.project
    store, file = await _failed_file(tx, job)
    fresh = replace(file, num_chunks=0, usage_bytes=0)
    # The file's row first: a sweep that has locked it drops passages until its transaction ends.
    store = await move(tx, project, store, fresh, FileState.IN_PROGRESS)
    await VectorStoreQueries(tx).update(project, store)
    while await ChunkQueries(tx).drop(project, file.entry, _PASSAGES_AT_ONCE):
        pass
    return job.kind


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
