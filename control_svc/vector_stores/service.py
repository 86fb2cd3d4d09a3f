"""CRUD of vector stores, and the steps of the sweeper that delete their rows."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from corral.control.v1 import vector_store_pb2
from corral.control.v1 import vector_store_service_pb2 as pb
from corral.inference.v1.generation_pb2 import RateLimitStatus

from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import VECTOR_STORE
from control_svc.base.resource import Edit, Resource
from control_svc.db.cleanup import ROWS_AT_ONCE, Deleted
from control_svc.db.notifications import Notifications, follow
from control_svc.db.transaction import CrossProjectTransaction, Transaction
from control_svc.vector_stores import proto as convert
from control_svc.vector_stores.membership import FileAdder, remove_files
from control_svc.vector_stores.model import FileState, NewVectorStore, StoreState, VectorStore
from control_svc.vector_stores.queries import (
    StoreFileQueries,
    StoreSweepQueries,
    VectorStoreQueries,
)
from control_svc.vector_stores.search.chunk_queries import ChunkQueries
from control_svc.vector_stores.search.model import Search
from svc_kit.errors import VectorStoreNotFound

DEFAULT_RESULTS: Final = 10
CREATE: Final = "CreateVectorStore"
CallerLimits = Callable[[], Awaitable[Sequence[RateLimitStatus]]]
"""Reads the enforced limits of the running call for the embedding model."""


@dataclass(frozen=True)
class VectorStores(Resource[VectorStore, NewVectorStore]):
    service = pb.DESCRIPTOR.services_by_name["VectorStoreService"]
    message, queries = convert.STORE, VectorStoreQueries
    noun, plural = "a vector store", "vector_stores"

    adder: FileAdder
    search: Search
    caller_limits: CallerLimits
    notifications: Notifications
    watch_interval_s: float
    """Poll interval of `WatchVectorStore`, in case a notification is lost."""

    def to_message(self, value: VectorStore) -> vector_store_pb2.VectorStore:
        """Convert a store, whose state depends on the time."""
        return convert.store_to_pb(value, self.clock)

    async def CreateVectorStore(
        self, project: str, request: pb.CreateVectorStoreRequest
    ) -> pb.CreateVectorStoreResponse:
        """Create a store. Jobs ingest its files.

        Raises MissingField, InvalidField, OutOfRange, TooLong, FileNotFound, RequestIdReused,
        or EmbeddingModelMissing if there are files.
        """
        new = convert.NEW_STORE.from_message(request)
        new.check()
        if new.files:
            self.adder.check_model()
        store = new.make(self.ids.new(VECTOR_STORE), self.clock())
        record = IdempotencyRecord.of(CREATE, new.request_id, store.id, store.created_at, new)

        async def add(tx: Transaction) -> VectorStore:
            recorded_id = await record_request(tx, record)
            if recorded_id == store.id:
                await VectorStoreQueries(tx).add(store)
                if new.files:
                    await self.adder.add(tx, store.id, new.files)
            return await VectorStoreQueries(tx).get(recorded_id)

        created = await self.transactions.of(project).write(add)
        limits = await self.caller_limits() if new.files else ()
        return pb.CreateVectorStoreResponse(
            vector_store=self.to_message(created), rate_limits=limits
        )

    def edit(self, request: pb.UpdateVectorStoreRequest) -> Edit[VectorStore]:
        """Raises InvalidField or VectorStoreExpired."""
        changes = convert.store_changes(request)

        async def change(_tx: Transaction, current: VectorStore) -> VectorStore:
            current.check_not_expired(self.clock())
            return replace(current, **changes).touch(self.clock())

        return change

    async def SearchVectorStore(
        self, project: str, request: pb.SearchVectorStoreRequest
    ) -> pb.SearchVectorStoreResponse:
        """Search the chunks of a store. Raises the errors of `Search.search`."""
        hits = await self.search.search(
            project,
            [request.vector_store_id],
            request.queries,
            request.max_results or DEFAULT_RESULTS,
            convert.read_filter(request.filter) if request.HasField("filter") else None,
            convert.RANKING.from_message(request.ranking),
        )
        return pb.SearchVectorStoreResponse(
            hits=[convert.HIT.to_message(hit) for hit in hits],
            rate_limits=await self.caller_limits(),
        )

    def WatchVectorStore(
        self, project: str, request: pb.WatchVectorStoreRequest
    ) -> AsyncGenerator[VectorStore, None]:
        """Yield a store now and after each change, until no file is in progress.

        Raises VectorStoreNotFound.
        """
        return follow(
            self.notifications,
            request.vector_store_id,
            lambda: self.get(project, request),
            lambda store: not store.counts.in_progress,
            self.watch_interval_s,
        )


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


async def remove_deleted_files(tx: CrossProjectTransaction, _now: datetime) -> Deleted:
    """Remove files that no longer exist from a store. A step of the sweeper."""
    orphaned = await StoreSweepQueries(tx).find_orphaned()
    if orphaned is None:
        return Deleted(0)
    project, store_id, file_ids = orphaned
    with suppress(VectorStoreNotFound):  # deleted in the meantime
        await remove_files(tx.of(project), store_id, file_ids)
    return Deleted(len(file_ids))


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
