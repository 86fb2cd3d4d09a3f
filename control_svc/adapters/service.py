"""CRUD of adapters. Every change has a new revision, which `sync.py` streams to frontends."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeVar

from corral.control.v1 import adapter_service_pb2 as pb

from control_svc.adapters import proto as convert
from control_svc.adapters.ingest import AdapterBytes
from control_svc.adapters.model import (
    ADAPTERS_TOPIC,
    REPORT_TTL,
    Adapter,
    AdapterWithReports,
    NewAdapter,
)
from control_svc.adapters.queries import AdapterFrontendQueries, AdapterQueries
from control_svc.adapters.sync import AdapterSync
from control_svc.base.idempotency import IdempotencyRecord, find_or_record
from control_svc.base.ids import ADAPTER
from control_svc.base.pagination import Page
from control_svc.base.resource import Methods
from control_svc.blobs.store import Blob, BlobStore
from control_svc.db.notifications import Notifications, wait_for_notification
from control_svc.db.transaction import (
    Transaction,
    delete_transaction,
    read_transaction,
    write_transaction,
)
from control_svc.files.service import delete_if_rejected
from model_files.adapter_facts import AdapterFacts
from svc_kit.errors import AdapterExists, TooManyAdapters

ResultT = TypeVar("ResultT")
MAX_WAIT_S: Final = 60.0
CREATE: Final = "CreateAdapter"
_POLL_S: Final = 2.0
"""Maximum delay of a report whose notification was lost."""


class _StoredAdapter(NamedTuple):
    """A registered adapter, and the keys of blobs that are not referenced any more."""

    adapter: Adapter
    unused_blobs: list[str]


@dataclass(frozen=True)
class Adapters(Methods[Adapter]):
    """Adapters, and for inference frontends the desired state of all projects."""

    service = pb.DESCRIPTOR.services_by_name["AdapterService"]
    message, noun, plural = convert.ADAPTER, "an adapter", "adapters"
    default_page = max_page = 1000

    blobs: BlobStore
    source: AdapterBytes
    per_project: int
    """Maximum number of adapters of a project."""
    notifications: Notifications
    check_name: Callable[[str, str], Awaitable[None]]
    """Raises ModelExists if a model has this name; the first argument is the project."""
    sync: AdapterSync

    async def CreateAdapter(
        self, project: str, requests: AsyncIterator[pb.CreateAdapterRequest]
    ) -> Adapter:
        """Register an adapter from a stream, a file or an operator's folder. A rejected request
        stores nothing.

        Raises ScopeMissing, the errors of `AdapterBytes`, AdapterExists, ModelExists,
        TooManyAdapters or RequestIdReused.
        """
        async with self.source.receive(project, convert.read_pieces(requests)) as (new, file):
            await self.check_name(project, new.name)
            facts = await self.source.validate(new.name, file)
            blob = await self.source.store(file)
        adapter = self._new_adapter(new, facts, blob)
        async with delete_if_rejected(self.blobs, blob):
            stored = await self._store(project, new, adapter)
        await self.blobs.delete(stored.unused_blobs)
        return stored.adapter

    async def GetAdapter(
        self, project: str, request: pb.GetAdapterRequest
    ) -> pb.GetAdapterResponse:
        """Return an adapter by id or name, with its state in every engine. Raises AdapterNotFound.

        Waits, if asked to, until all frontends have loaded the adapter or failed to.
        """
        found = await self._wait(
            convert.wait_s(request),
            lambda: self._read(project, request.adapter),
            lambda current: current.is_settled,
        )
        return pb.GetAdapterResponse(adapter=convert.adapter_with_reports_to_pb(found))

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
    async def ListAdapters(self, tx: Transaction, request: pb.ListAdaptersRequest) -> Page[Adapter]:
        """List the project's adapters. Raises OutOfRange or InvalidField."""
        window = self.window(tx, request, ADAPTER)
        return window.page(await AdapterQueries(tx).page(window))

    async def UpdateAdapter(
        self, project: str, request: pb.UpdateAdapterRequest
    ) -> pb.UpdateAdapterResponse:
        """Change an adapter.

        Raises AdapterNotFound, StaleGeneration, TooLong, InvalidField or OutOfRange.
        """
        changes = convert.adapter_changes(request)
        changed = await self._change(
            project, request.adapter, request.etag, lambda current: replace(current, **changes)
        )
        return pb.UpdateAdapterResponse(adapter=convert.adapter_with_reports_to_pb(changed))

    async def RetryAdapter(
        self, project: str, request: pb.RetryAdapterRequest
    ) -> pb.RetryAdapterResponse:
        """Make frontends retry a failed load. Raises AdapterNotFound."""
        changed = await self._change(
            project,
            request.adapter,
            "",
            lambda current: replace(current, attempt=current.attempt + 1),
        )
        return pb.RetryAdapterResponse(adapter=convert.adapter_with_reports_to_pb(changed))

    async def DeleteAdapter(
        self, project: str, request: pb.DeleteAdapterRequest
    ) -> pb.DeleteAdapterResponse:
        """Delete an adapter and its bytes.

        Waits, if asked to, until all frontends have unloaded it. Raises AdapterNotFound or
        StaleGeneration.
        """
        deleted, revision = await self._delete_row(project, request.adapter, request.etag)
        await self.blobs.delete([deleted.blob_key])
        return await self._wait(
            convert.wait_s(request),
            lambda: self._read_deleted(project, deleted.id, revision),
            lambda current: not current.pending_frontend_count,
        )

    async def WatchDesired(
        self, _project: str, request: pb.WatchDesiredRequest
    ) -> AsyncGenerator[pb.WatchDesiredResponse, None]:
        """Stream the desired state and its changes, until the client cancels."""
        async with aclosing(self.sync.watch(request.revision)) as events:
            async for event in events:
                yield convert.event_to_pb(event)

    async def ReportAdapters(self, _project: str, request: pb.ReportAdaptersRequest) -> None:
        """Replace the reports of a frontend. Raises InvalidField or TooLong."""
        now = self.clock()
        frontend = convert.frontend_of(request, now)
        await self.sync.report(frontend, convert.adapter_reports(request, now))

    async def DownloadAdapter(
        self, _project: str, request: pb.DownloadAdapterRequest
    ) -> AsyncGenerator[pb.DownloadAdapterResponse, None]:
        """Stream the bytes of a registered adapter. Raises AdapterNotFound or BlobMissing."""
        async for chunk in self.sync.download(request.sha256):
            yield pb.DownloadAdapterResponse(chunk=chunk)

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
    ) -> pb.DeleteAdapterResponse:
        frontends = await AdapterFrontendQueries(tx).frontends(self.clock() - REPORT_TTL)
        pending = [frontend for frontend in frontends if frontend.revision < revision]
        return pb.DeleteAdapterResponse(
            adapter_id=adapter_id,
            frontend_count=len(frontends),
            pending_frontend_count=len(pending),
        )

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
