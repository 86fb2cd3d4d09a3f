"""CRUD of vector stores, and the sweep of expired ones."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final, TypeVar

from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import VECTOR_STORE, IdSource
from control_svc.base.pagination import Page, PageRequest, PageTokens
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


_AT_ONCE: Final = 500


async def sweep_vectors(transactions: Transactions, now: datetime) -> None:
    """One round; passages go some in each transaction, because a store may have a million."""
    for project, store_id in await transactions.read(
        lambda tx: VectorStoreQueries(tx).expired(now, _AT_ONCE)
    ):
        await transactions.write(partial(_empty, project, store_id, now))
    for project, file_id in await transactions.read(lambda tx: StoreFileQueries(tx).lost(_AT_ONCE)):
        await transactions.write(partial(_take_out, project, file_id))
    while await transactions.write(_drop_some):
        pass


async def _empty(project: str, store_id: str, now: datetime, tx: Transaction) -> None:
    try:
        store = await VectorStoreQueries(tx).lock(project, store_id)
    except VectorStoreNotFound:  # deleted meanwhile
        return
    if store.state(now) is StoreState.EXPIRED:
        await VectorStoreQueries(tx).empty(project, store)


async def _take_out(project: str, file_id: str, tx: Transaction) -> None:
    await remove_from_all(tx, project, file_id)


async def _drop_some(tx: Transaction) -> bool:
    """Whether there was anything to drop."""
    found = await StoreFileQueries(tx).left_behind()
    if found is None:
        return False
    project, file = found
    if await ChunkQueries(tx).drop(project, file.entry, _AT_ONCE) < _AT_ONCE:
        if file.state is FileState.DELETED:
            await StoreFileQueries(tx).forget(project, file.entry)
        else:
            await StoreFileQueries(tx).update(project, replace(file, num_chunks=0, usage_bytes=0))
    return True
