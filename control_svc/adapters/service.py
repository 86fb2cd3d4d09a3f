"""CRUD of adapters. Every change has a new revision, which `sync.py` streams to frontends."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeVar

from control_svc.adapters.ingest import AdapterBytes
from control_svc.adapters.model import (
    ADAPTERS_TOPIC,
    REPORT_TTL,
    Adapter,
    AdapterChanges,
    AdapterWithReports,
    DeletedAdapter,
    NewAdapter,
)
from control_svc.adapters.queries import AdapterFrontendQueries, AdapterQueries
from control_svc.base.idempotency import IdempotencyRecord, find_or_record
from control_svc.base.ids import ADAPTER, IdSource
from control_svc.base.pagination import Page, PageRequest, PageTokens
from control_svc.blobs.store import Blob, BlobStore
from control_svc.db.notifications import Notifications, wait_for_notification
from control_svc.db.transaction import (
    Clock,
    Transaction,
    Transactions,
    delete_transaction,
    read_transaction,
    write_transaction,
)
from control_svc.files.service import delete_if_rejected
from model_files.adapter_facts import AdapterFacts
from svc_kit.errors import AdapterExists, TooManyAdapters

ResultT = TypeVar("ResultT")
MAX_PAGE: Final = 1000
MAX_WAIT_S: Final = 60.0
CREATE: Final = "CreateAdapter"
_POLL_S: Final = 2.0
"""Maximum delay of a report whose notification was lost."""


class _StoredAdapter(NamedTuple):
    """A registered adapter, and the keys of blobs that are not referenced any more."""

    adapter: Adapter
    unused_blobs: list[str]


@dataclass(frozen=True)
class Adapters:
    """Registers, changes and deletes adapters."""

    transactions: Transactions
    blobs: BlobStore
    source: AdapterBytes
    ids: IdSource
    tokens: PageTokens
    per_project: int
    """Maximum number of adapters of a project."""
    notifications: Notifications
    clock: Clock
    check_name: Callable[[str, str], Awaitable[None]]
    """Raises ModelExists if a model has this name; the first argument is the project."""

    async def create(self, project: str, pieces: AsyncIterator[NewAdapter | bytes]) -> Adapter:
        """Register an adapter. A rejected request stores nothing.

        Raises the errors of `AdapterBytes`, AdapterExists, ModelExists, TooManyAdapters or
        RequestIdReused.
        """
        async with self.source.receive(project, pieces) as (new, file):
            await self.check_name(project, new.name)
            facts = await self.source.validate(new.name, file)
            blob = await self.source.store(file)
        adapter = self._new_adapter(new, facts, blob)
        async with delete_if_rejected(self.blobs, blob):
            stored = await self._store(project, new, adapter)
        await self.blobs.delete(stored.unused_blobs)
        return stored.adapter

    async def get(self, project: str, adapter: str, wait_s: float = 0.0) -> AdapterWithReports:
        """Return an adapter by id or name. Raises AdapterNotFound.

        Waits up to `wait_s` seconds until all frontends have loaded the adapter or failed to.
        """
        return await self._wait(
            wait_s, lambda: self._read(project, adapter), lambda current: current.is_settled
        )

    async def _wait(
        self,
        wait_s: float,
        read: Callable[[], Awaitable[ResultT]],
        is_done: Callable[[ResultT], bool],
    ) -> ResultT:
        """Read after each report of a frontend, until what is read is done or the time is over."""
        deadline = time.monotonic() + min(wait_s, MAX_WAIT_S)
        with self.notifications.listen(ADAPTERS_TOPIC) as changed:
            while True:
                current = await read()
                remaining_s = deadline - time.monotonic()
                if is_done(current) or remaining_s <= 0:
                    return current
                await wait_for_notification(changed, min(remaining_s, _POLL_S))

    @read_transaction
    async def page(self, tx: Transaction, page_request: PageRequest) -> Page[Adapter]:
        """List the project's adapters. Raises OutOfRange or InvalidField."""
        page_request.check_cursors(ADAPTER, "an adapter")
        window = self.tokens.window(page_request, (tx.project, "adapters"), MAX_PAGE)
        return window.page(await AdapterQueries(tx).page(window))

    async def update(
        self, project: str, adapter: str, changes: AdapterChanges, etag: str
    ) -> AdapterWithReports:
        """Change an adapter.

        Raises AdapterNotFound, StaleGeneration, TooLong, InvalidField or OutOfRange.
        """
        return await self._change(project, adapter, etag, changes.apply)

    async def retry(self, project: str, adapter: str) -> AdapterWithReports:
        """Make frontends retry a failed load. Raises AdapterNotFound."""
        return await self._change(
            project, adapter, "", lambda current: replace(current, attempt=current.attempt + 1)
        )

    async def delete(
        self, project: str, adapter: str, etag: str, wait_s: float = 0.0
    ) -> DeletedAdapter:
        """Delete an adapter and its bytes.

        Waits up to `wait_s` seconds until all frontends have unloaded it. Raises AdapterNotFound or
        StaleGeneration.
        """
        deleted, revision = await self._delete_row(project, adapter, etag)
        await self.blobs.delete([deleted.blob_key])
        return await self._wait(
            wait_s,
            lambda: self._read_deleted(project, deleted.id, revision),
            lambda current: not current.pending_frontend_count,
        )

    @delete_transaction
    async def _delete_row(self, tx: Transaction, adapter: str, etag: str) -> tuple[Adapter, int]:
        """Return the adapter, and the first revision without it."""
        revision = await AdapterFrontendQueries(tx).next_revision()
        current = await AdapterQueries(tx).lock(adapter)
        current.check_etag(etag)
        await AdapterQueries(tx).delete(current.id)
        return current, revision

    @read_transaction
    async def _read_deleted(
        self, tx: Transaction, adapter_id: str, revision: int
    ) -> DeletedAdapter:
        frontends = await AdapterFrontendQueries(tx).frontends(self.clock() - REPORT_TTL)
        pending = [frontend for frontend in frontends if frontend.revision < revision]
        return DeletedAdapter(adapter_id, len(frontends), len(pending))

    @write_transaction
    async def _store(self, tx: Transaction, new: NewAdapter, adapter: Adapter) -> _StoredAdapter:
        adapter = replace(adapter, revision=await AdapterFrontendQueries(tx).next_revision())
        queries = AdapterQueries(tx)
        existing = await queries.find(adapter.name)
        if existing is not None and new.replace:
            adapter = replace(adapter, id=existing.id, created_at=existing.created_at)
        request = IdempotencyRecord.of(
            CREATE, new.request_id, adapter.id, adapter.updated_at, new, adapter.sha256
        )
        earlier = await find_or_record(tx, request)
        if earlier is not None:
            stored = await queries.get(earlier.resource_id)
            return _StoredAdapter(stored, [adapter.blob_key])
        if existing is None:
            if await queries.count() >= self.per_project:
                raise TooManyAdapters(limit=self.per_project)
            await queries.add(adapter)
            return _StoredAdapter(adapter, [])
        if not new.replace:
            raise AdapterExists(adapter=adapter.name)
        await queries.update(adapter)
        return _StoredAdapter(adapter, [existing.blob_key])

    @write_transaction
    async def _change(
        self, tx: Transaction, adapter: str, etag: str, apply: Callable[[Adapter], Adapter]
    ) -> AdapterWithReports:
        revision = await AdapterFrontendQueries(tx).next_revision()
        current = await AdapterQueries(tx).lock(adapter)
        current.check_etag(etag)
        changed = replace(apply(current), revision=revision, updated_at=self.clock())
        await AdapterQueries(tx).update(changed)
        return await self._with_reports(tx, changed.id)

    @read_transaction
    async def _read(self, tx: Transaction, adapter: str) -> AdapterWithReports:
        return await self._with_reports(tx, adapter)

    async def _with_reports(self, tx: Transaction, adapter: str) -> AdapterWithReports:
        current = await AdapterQueries(tx).get(adapter)
        since = self.clock() - REPORT_TTL
        reports = await AdapterQueries(tx).reports(current.id, since)
        frontends = await AdapterFrontendQueries(tx).frontends(since)
        return AdapterWithReports(current, reports, len(frontends))

    def _new_adapter(self, new: NewAdapter, facts: AdapterFacts, blob: Blob) -> Adapter:
        now = self.clock()
        return Adapter(
            id=self.ids.new(ADAPTER),
            name=new.name,
            model=new.model,
            description=new.description,
            default_scale=new.default_scale,
            standing_scale=0.0,
            sha256=blob.sha256,
            file_bytes=blob.size_bytes,
            blob_key=blob.key,
            facts=facts,
            created_at=now,
            updated_at=now,
        )
