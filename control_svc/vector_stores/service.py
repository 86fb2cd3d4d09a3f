"""CRUD of vector stores, and the steps of the sweeper that delete their rows."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import VECTOR_STORE, IdSource
from control_svc.base.pagination import Page, PageRequest, PageTokens
from control_svc.db.cleanup import ROWS_AT_ONCE, CleanupStep, Deleted
from control_svc.db.notifications import Notifications, follow
from control_svc.db.transaction import (
    Clock,
    CrossProjectTransaction,
    Transaction,
    Transactions,
    delete_transaction,
    read_transaction,
    write_transaction,
)
from control_svc.vector_stores.membership import FileAdder, remove_file_from_stores
from control_svc.vector_stores.model import (
    FileState,
    NewVectorStore,
    StoreChanges,
    StoreState,
    VectorStore,
)
from control_svc.vector_stores.queries import (
    StoreFileQueries,
    StoreSweepQueries,
    VectorStoreQueries,
)
from control_svc.vector_stores.search.chunk_queries import ChunkQueries
from svc_kit.errors import VectorStoreNotFound

MAX_PAGE: Final = 100
CREATE: Final = "CreateVectorStore"


@dataclass(frozen=True)
class VectorStores:
    """The operations of VectorStoreService, except search."""

    transactions: Transactions
    adder: FileAdder
    ids: IdSource
    tokens: PageTokens
    clock: Clock
    notifications: Notifications
    watch_interval_s: float
    """Poll interval of `watch`, in case a notification is lost."""

    @write_transaction
    async def create(self, tx: Transaction, new: NewVectorStore) -> VectorStore:
        """Create a store. Jobs ingest its files.

        Raises MissingField, InvalidField, OutOfRange, TooLong, FileNotFound, RequestIdReused,
        or EmbeddingModelMissing if there are files.
        """
        new.check()
        if new.files:
            self.adder.check_model()
        store = new.make(self.ids.new(VECTOR_STORE), self.clock())
        request = IdempotencyRecord.of(CREATE, new.request_id, store.id, store.created_at, new)
        recorded_id = await record_request(tx, request)
        if recorded_id == store.id:
            await VectorStoreQueries(tx).add(store)
            if new.files:
                await self.adder.add(tx, store.id, new.files)
        return await VectorStoreQueries(tx).get(recorded_id)

    @read_transaction
    async def get(self, tx: Transaction, store_id: str) -> VectorStore:
        """Get a store. Raises VectorStoreNotFound."""
        return await VectorStoreQueries(tx).get(store_id)

    @read_transaction
    async def page(self, tx: Transaction, page_request: PageRequest) -> Page[VectorStore]:
        """List the project's stores. Raises OutOfRange or InvalidField."""
        page_request.check_cursors(VECTOR_STORE, "a vector store")
        window = self.tokens.window(page_request, (tx.project, "vector_stores"), MAX_PAGE)
        return window.page(await VectorStoreQueries(tx).page(window))

    def watch(self, project: str, store_id: str) -> AsyncGenerator[VectorStore, None]:
        """Yield the store now and after each change, until no file is in progress.

        Raises VectorStoreNotFound.
        """
        return follow(
            self.notifications,
            store_id,
            lambda: self.get(project, store_id),
            lambda store: not store.counts.in_progress,
            self.watch_interval_s,
        )

    @write_transaction
    async def update(self, tx: Transaction, store_id: str, changes: StoreChanges) -> VectorStore:
        """Update a store.

        Raises VectorStoreNotFound, VectorStoreExpired, MissingField, InvalidField, OutOfRange or
        TooLong.
        """
        store = await VectorStoreQueries(tx).lock(store_id)
        store.check_not_expired(self.clock())
        store = changes.apply_to(store).touch(self.clock())
        await VectorStoreQueries(tx).update(store)
        return store

    @delete_transaction
    async def delete(self, tx: Transaction, store_id: str) -> None:
        """Delete a store. The sweeper deletes its chunks. Raises VectorStoreNotFound."""
        await VectorStoreQueries(tx).lock(store_id)
        await VectorStoreQueries(tx).delete(store_id)


async def clear_expired_store(tx: CrossProjectTransaction, now: datetime) -> Deleted:
    """Remove the files of an expired store. A step of the sweeper."""
    for project, store_id in await StoreSweepQueries(tx).list_expired(now, limit=1):
        stores = VectorStoreQueries(tx.of(project))
        try:
            store = await stores.lock(store_id)
        except VectorStoreNotFound:  # deleted in the meantime
            return Deleted(1)
        if store.state(now) is StoreState.EXPIRED:
            await stores.clear(store)
        return Deleted(1)
    return Deleted(0)


async def remove_deleted_file(tx: CrossProjectTransaction, _now: datetime) -> Deleted:
    """Remove a file that no longer exists from all stores. A step of the sweeper."""
    files = await StoreSweepQueries(tx).list_orphaned(limit=1)
    for project, file_id in files:
        await remove_file_from_stores(tx.of(project), file_id)
    return Deleted(len(files))


async def delete_unused_chunks(tx: CrossProjectTransaction, _now: datetime) -> Deleted:
    """Delete chunks of a file that was removed, failed or was cancelled. A step of the sweeper."""
    row = await StoreSweepQueries(tx).lock_removed()
    if row is None:
        return Deleted(0)
    project, file = row
    own = tx.of(project)
    if await ChunkQueries(own).delete(file.entry, ROWS_AT_ONCE) < ROWS_AT_ONCE:
        if file.state is FileState.DELETED:
            await StoreFileQueries(own).delete(file.entry)
        else:
            await StoreFileQueries(own).update(replace(file, num_chunks=0, usage_bytes=0))
    return Deleted(1)


VECTOR_STORE_CLEANUP: Final[Sequence[CleanupStep]] = (
    clear_expired_store,
    remove_deleted_file,
    delete_unused_chunks,
)
