"""CRUD of adapters. Every change takes a new revision, which `sync.py` streams to frontends."""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Final

from control_svc.adapters.ingest import AdapterBytes
from control_svc.adapters.model import (
    ADAPTERS_TOPIC,
    REPORTS_COUNT_FOR,
    Adapter,
    AdapterChanges,
    AdapterWithReports,
    NewAdapter,
)
from control_svc.adapters.queries import AdapterQueries, AdapterSyncQueries
from control_svc.base.idempotency import IdempotencyRecord, find_or_record
from control_svc.base.ids import ADAPTER, IdSource, is_id
from control_svc.base.pagination import Page, PageRequest, PageTokens
from control_svc.blobs.store import Blob, BlobStore
from control_svc.db.notifications import Notifications, wait_for_notification
from control_svc.db.transaction import Clock, Transaction, Transactions
from control_svc.files.service import delete_if_rejected
from model_files.adapter_facts import AdapterFacts
from svc_kit.errors import AdapterExists, InvalidField, TooManyAdapters

MAX_PAGE: Final = 1000
LONGEST_WAIT_S: Final = 60.0
CREATE: Final = "CreateAdapter"
_POLL_S: Final = 2.0
"""How soon a report is seen whose notice was lost."""


@dataclass(frozen=True)
class _Stored:
    """A registered adapter, and the blobs that it replaced."""

    adapter: Adapter
    dropped: list[str]


class Adapters:
    """What callers do with adapters."""

    def __init__(
        self,
        transactions: Transactions,
        blobs: BlobStore,
        source: AdapterBytes,
        ids: IdSource,
        tokens: PageTokens,
        per_project: int,
        notifications: Notifications,
        clock: Clock,
    ) -> None:
        self._transactions = transactions
        self._blobs = blobs
        self._source = source
        self._ids = ids
        self._tokens = tokens
        self._per_project = per_project
        self._notifications = notifications
        self._clock = clock

    async def create(self, project: str, pieces: AsyncIterator[NewAdapter | bytes]) -> Adapter:
        """Register an adapter.

        Raises what `AdapterBytes` does, AdapterExists, TooManyAdapters or RequestIdReused. Nothing
        is left of one that is refused.
        """
        async with self._source.gathered(project, pieces) as gathered:
            facts = await self._source.judge(gathered)
            blob = await self._source.store(gathered.file)
        adapter = self._new(gathered.described, facts, blob)
        async with delete_if_rejected(self._blobs, blob):
            stored = await self._transactions.write(
                lambda tx: self._add(tx, project, gathered.described, adapter)
            )
        await self._blobs.delete(stored.dropped)
        return stored.adapter

    async def get(self, project: str, adapter: str, wait_s: float = 0.0) -> AdapterWithReports:
        """An adapter by id or name, once frontends have loaded it or failed to, or after `wait_s`
        seconds. Raises AdapterNotFound."""
        deadline = time.monotonic() + min(wait_s, LONGEST_WAIT_S)
        with self._notifications.listen(ADAPTERS_TOPIC) as changed:
            while True:
                found = await self._transactions.read(
                    lambda tx: self._with_reports(tx, project, adapter)
                )
                left = deadline - time.monotonic()
                if found.is_settled or left <= 0:
                    return found
                await wait_for_notification(changed, min(left, _POLL_S))

    async def page(self, project: str, page_request: PageRequest) -> Page[Adapter]:
        """A page of the project's adapters. Raises OutOfRange or InvalidField."""
        if page_request.after and not is_id(page_request.after, ADAPTER):
            raise InvalidField(field="after", problem="it is not the id of an adapter")
        binding = (project, "adapters")
        window = self._tokens.window(page_request, binding, MAX_PAGE)
        found = await self._transactions.read(lambda tx: AdapterQueries(tx).page(project, window))
        return self._tokens.page(found, window, page_request, binding)

    async def update(
        self, project: str, adapter: str, changes: AdapterChanges, etag: str
    ) -> AdapterWithReports:
        """Change an adapter.

        Raises AdapterNotFound, StaleGeneration, TooLong, InvalidField or OutOfRange.
        """
        changes.check()
        return await self._change(project, adapter, etag, changes.applied_to)

    async def retry(self, project: str, adapter: str) -> AdapterWithReports:
        """Have frontends try again what failed. Raises AdapterNotFound."""
        return await self._change(
            project, adapter, "", lambda found: replace(found, attempt=found.attempt + 1)
        )

    async def delete(self, project: str, adapter: str, etag: str) -> str:
        """Delete an adapter and its bytes; its id. Raises AdapterNotFound or StaleGeneration."""

        async def drop(tx: Transaction) -> Adapter:
            await AdapterSyncQueries(tx).next_revision()
            found = await AdapterQueries(tx).lock(project, adapter)
            found.check_etag(etag)
            await AdapterQueries(tx).delete(project, found.id)
            return found

        dropped = await self._transactions.write(drop)
        await self._blobs.delete([dropped.blob_key])
        return dropped.id

    async def _add(
        self, tx: Transaction, project: str, described: NewAdapter, adapter: Adapter
    ) -> _Stored:
        adapter = replace(adapter, revision=await AdapterSyncQueries(tx).next_revision())
        before = await AdapterQueries(tx).find(project, adapter.name)
        if before is not None and described.replace:
            adapter = replace(adapter, id=before.id, created_at=before.created_at)
        request = IdempotencyRecord.of(
            CREATE, described.request_id, adapter.id, adapter.updated_at, described, adapter.sha256
        )
        first = await find_or_record(tx, project, request)
        if first is not None:
            created = await AdapterQueries(tx).get(project, first.resource_id)
            return _Stored(created, [adapter.blob_key])
        if before is None:
            if await AdapterQueries(tx).count(project) >= self._per_project:
                raise TooManyAdapters(limit=self._per_project)
            await AdapterQueries(tx).add(project, adapter)
            return _Stored(adapter, [])
        if not described.replace:
            raise AdapterExists(adapter=adapter.name)
        await AdapterQueries(tx).update(project, adapter)
        return _Stored(adapter, [before.blob_key])

    async def _change(
        self, project: str, adapter: str, etag: str, apply: Callable[[Adapter], Adapter]
    ) -> AdapterWithReports:
        async def change(tx: Transaction) -> AdapterWithReports:
            revision = await AdapterSyncQueries(tx).next_revision()
            found = await AdapterQueries(tx).lock(project, adapter)
            found.check_etag(etag)
            changed = replace(apply(found), revision=revision, updated_at=self._clock())
            await AdapterQueries(tx).update(project, changed)
            return await self._with_reports(tx, project, changed.id)

        return await self._transactions.write(change)

    async def _with_reports(
        self, tx: Transaction, project: str, adapter: str
    ) -> AdapterWithReports:
        found = await AdapterQueries(tx).get(project, adapter)
        since = self._clock() - REPORTS_COUNT_FOR
        reports = await AdapterQueries(tx).reports(project, found.id, since)
        return AdapterWithReports(found, reports)

    def _new(self, described: NewAdapter, facts: AdapterFacts, blob: Blob) -> Adapter:
        now = self._clock()
        return Adapter(
            id=self._ids.new(ADAPTER),
            name=described.name,
            model=described.model,
            description=described.description,
            default_scale=described.default_scale,
            standing_scale=0.0,
            sha256=blob.sha256,
            file_bytes=blob.size_bytes,
            blob_key=blob.key,
            facts=facts,
            created_at=now,
            updated_at=now,
        )
