"""CRUD of vector stores, and the steps of the sweeper that delete their rows."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from typing import Final, TypeVar

from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import VECTOR_STORE, IdSource
from control_svc.base.pagination import Page, PageRequest, PageTokens
from control_svc.db.cleanup import ROWS_AT_ONCE, CleanupStep, Deleted
from control_svc.db.notifications import Notifications, follow
from control_svc.db.transaction import Clock, Transaction, Transactions
from control_svc.vector_stores.membership import FileAdder, remove_from_all
from control_svc.vector_stores.model import (
    FileState,
    NewVectorStore,
    StoreChanges,
    StoreState,
    VectorStore,
)
from control_svc.vector_stores.queries import StoreFileQueries, VectorStoreQueries
from control_svc.vector_stores.search.chunk_queries import ChunkQueries
from svc_kit.errors import VectorStoreNotFound

MAX_PAGE: Final = 100
CREATE: Final = "CreateVectorStore"
ResultT = TypeVar("ResultT")


class VectorStores:
    """What callers do with stores."""

    def __init__(
        self,
        transactions: Transactions,
        adder: FileAdder,
        ids: IdSource,
        tokens: PageTokens,
        clock: Clock,
        notifications: Notifications,
        watch_interval_s: float,
    ) -> None:
        """`watch_interval_s` is how long a watcher misses a notice that got lost."""
        self._transactions = transactions
        self._adder = adder
        self._ids = ids
        self._tokens = tokens
        self._clock = clock
        self._notifications = notifications
        self._watch_interval_s = watch_interval_s

    async def create(self, project: str, new: NewVectorStore) -> VectorStore:
        """Begin a store; its files are read by jobs.

        Raises MissingField, InvalidField, OutOfRange, TooLong, FileNotFound, RequestIdReused or,
        where there are files, EmbeddingModelMissing.
        """
        new.check()
        if new.files:
            self._adder.check_model()
        store = new.make(self._ids.new(VECTOR_STORE), self._clock())
        request = IdempotencyRecord.of(CREATE, new.request_id, store.id, store.created_at, new)

        async def add(tx: Transaction) -> VectorStore:
            created = await record_request(tx, project, request)
            if created == store.id:
                await VectorStoreQueries(tx).add(project, store)
                await self._adder.add(tx, project, store.id, new.files)
            return await VectorStoreQueries(tx).get(project, created)

        return await self._transactions.write(add)

    async def get(self, project: str, store_id: str) -> VectorStore:
        """Raises VectorStoreNotFound."""
        return await self._transactions.read(
            lambda tx: VectorStoreQueries(tx).get(project, store_id)
        )

    async def page(self, project: str, page_request: PageRequest) -> Page[VectorStore]:
        """A page of the project's stores. Raises OutOfRange or InvalidField."""
        page_request.check_cursors(VECTOR_STORE, "a vector store")
        binding = (project, "vector_stores")
        window = self._tokens.window(page_request, binding, MAX_PAGE)
        found = await self._transactions.read(
            lambda tx: VectorStoreQueries(tx).page(project, window)
        )
        return self._tokens.page(found, window, page_request, binding)

    async def watch(self, project: str, store_id: str) -> AsyncGenerator[VectorStore, None]:
        """A store as it is, and after each change, until no file of it is in progress.

        Raises VectorStoreNotFound.
        """
        following = follow(
            self._notifications,
            store_id,
            lambda: self.get(project, store_id),
            lambda store: not store.counts.in_progress,
            self._watch_interval_s,
        )
        async with aclosing(following) as stores:
            async for store in stores:
                yield store

    async def update(self, project: str, store_id: str, changes: StoreChanges) -> VectorStore:
        """Update a store. Raises VectorStoreNotFound, VectorStoreExpired, MissingField,
        InvalidField, OutOfRange or TooLong.
        """
        changes.check()

        async def change(tx: Transaction) -> VectorStore:
            store = await VectorStoreQueries(tx).lock(project, store_id)
            store.check_alive(self._clock())
            changed = changes.applied_to(store).used(self._clock())
            await VectorStoreQueries(tx).update(project, changed)
            return changed

        return await self._transactions.write(change)

    async def delete(self, project: str, store_id: str) -> None:
        """Delete a store; nothing of it is found from now on. Raises VectorStoreNotFound."""

        async def forget(tx: Transaction) -> None:
            await VectorStoreQueries(tx).lock(project, store_id)
            await VectorStoreQueries(tx).delete(project, store_id)

        await self._transactions.write(forget)


async def empty_expired_store(tx: Transaction, now: datetime) -> Deleted:
    """Remove the files of an expired store. A step of the sweeper."""
    for project, store_id in await VectorStoreQueries(tx).expired(now, limit=1):
        try:
            store = await VectorStoreQueries(tx).lock(project, store_id)
        except VectorStoreNotFound:  # deleted meanwhile
            return Deleted(1)
        if store.state(now) is StoreState.EXPIRED:
            await VectorStoreQueries(tx).empty(project, store)
        return Deleted(1)
    return Deleted(0)


async def remove_deleted_file(tx: Transaction, _now: datetime) -> Deleted:
    """Remove a file that no longer exists from all stores. A step of the sweeper."""
    files = await StoreFileQueries(tx).lost(limit=1)
    for project, file_id in files:
        await remove_from_all(tx, project, file_id)
    return Deleted(len(files))


async def delete_unused_chunks(tx: Transaction, _now: datetime) -> Deleted:
    """Delete chunks of a file that was removed, failed or was cancelled. A step of the sweeper."""
    found = await StoreFileQueries(tx).left_behind()
    if found is None:
        return Deleted(0)
    project, file = found
    if await ChunkQueries(tx).drop(project, file.entry, ROWS_AT_ONCE) < ROWS_AT_ONCE:
        if file.state is FileState.DELETED:
            await StoreFileQueries(tx).forget(project, file.entry)
        else:
            await StoreFileQueries(tx).update(project, replace(file, num_chunks=0, usage_bytes=0))
    return Deleted(1)


CLEANUP_STEPS: Final[Sequence[CleanupStep]] = (
    empty_expired_store,
    remove_deleted_file,
    delete_unused_chunks,
)
