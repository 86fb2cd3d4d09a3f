"""The integrity of an installation: rows that refer to missing rows, blobs that are lost, contents
that the key does not decrypt. Reads only, also while services run.
"""

import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa

from control_svc.backup.references import (
    ROWS_AT_ONCE,
    BlobReference,
    for_each,
    read_secret,
    reference_groups,
)
from control_svc.blobs.store import BlobStore
from control_svc.config import ControlSettings
from control_svc.core import (
    INSTALLATION,
    SEAL_KEY,
    blob_location,
    data_folder,
    database_url,
    open_store,
)
from control_svc.db import migrations
from control_svc.db.engine import ReadOnlyDatabase, open_read_only
from control_svc.db.transaction import CrossProjectTransaction
from control_svc.items.model import Compaction, Reasoning
from control_svc.items.queries import ItemRow, TimelineItemRow, decode_content
from control_svc.responses.content_cipher import ContentCipher
from control_svc.slices import BLOB_COLUMNS, METADATA
from control_svc.sweeper import find_orphans
from svc_kit.encryption import KEY_BYTES, Sealer
from svc_kit.errors import BlobMissing, StorageFailed


class Problem(NamedTuple):
    """Something that is damaged."""

    kind: str
    """"database", "foreign_key", "blob_missing", "blob_changed", "blob_unreadable",
    "installation" or "sealed"."""
    subject: str
    """The table and the object."""
    detail: str


@dataclass
class Report:
    """What was checked, and what is damaged."""

    foreign_keys: int = 0
    blobs: int = 0
    blob_bytes: int = 0
    sealed: int = 0
    """Encrypted contents that this installation has stored."""
    unreferenced: int = 0
    """Blobs without a row, older than a running call can be; the sweeper deletes them."""
    problems: list[Problem] = field(default_factory=list)

    def add(self, kind: str, subject: str, detail: str) -> None:
        self.problems.append(Problem(kind, subject, detail))


async def check(
    settings: ControlSettings, *, quick: bool, progress: Callable[[int], None]
) -> Report:
    """Check an installation; `quick` reads one byte of each blob instead of all.

    `progress` gets the number of blobs so far. Raises StartupError if there is no database of this
    release, UpstreamUnavailable and StorageFailed.
    """
    report = Report()
    async with open_read_only(database_url(settings), data_folder(settings)) as database:
        await migrations.check_revision(database.engine)
        await _check_pages(database, report)
        await database.transactions.read(lambda tx: _check_foreign_keys(tx, report))
        await _check_sealed(database, report)
        blobs = BlobCheck(database, open_store(*blob_location(settings)), report, quick)
        await blobs.run(timedelta(seconds=2 * settings.server.max_deadline_s), progress)
    return report


async def _check_pages(database: ReadOnlyDatabase, report: Report) -> None:
    """Check the pages of an SQLite file; PostgreSQL checks its own (`amcheck`)."""
    if database.file is None:
        return

    async def read(tx: CrossProjectTransaction) -> list[str]:
        return list(await tx.session.scalars(sa.text("PRAGMA quick_check")))

    for line in await database.transactions.read(read):
        if line != "ok":
            report.add("database", str(database.file), line)


async def _check_foreign_keys(tx: CrossProjectTransaction, report: Report) -> None:
    for table in METADATA.sorted_tables:
        for constraint in table.foreign_key_constraints:
            parent = constraint.referred_table.alias()
            pairs = [(each.parent, parent.c[each.column.name]) for each in constraint.elements]
            has_parent = sa.exists().where(*(child == key for child, key in pairs))
            orphans = sa.select(sa.func.count()).where(
                *(child.is_not(None) for child, _ in pairs), ~has_parent
            )
            count = await tx.session.scalar(orphans.select_from(table))
            report.foreign_keys += 1
            if count:
                columns = ", ".join(child.name for child, _ in pairs)
                detail = f"{count} rows without their row of {constraint.referred_table.name}"
                report.add("foreign_key", f"{table.name} ({columns})", detail)


async def _check_sealed(database: ReadOnlyDatabase, report: Report) -> None:
    """Check what this installation has encrypted; callers may have sent anything."""
    key = await database.transactions.read(lambda tx: read_secret(tx.session, SEAL_KEY))
    cipher = ContentCipher(Sealer(key)) if key and len(key) == KEY_BYTES else None
    async for row in _sealed_items(database):
        content = decode_content(row.document)
        if isinstance(content, Reasoning) and content.sealed:
            opened: object = cipher and cipher.open_reasoning(row.project, content.sealed)
        elif isinstance(content, Compaction):
            opened = cipher and cipher.open_summary(row.project, content.sealed)
        else:
            continue
        report.sealed += 1
        if opened is None:
            detail = "the installation's key does not decrypt it"
            report.add("sealed", f"items {row.id} of project {row.project}", detail)


async def _sealed_items(database: ReadOnlyDatabase) -> AsyncIterator[ItemRow]:
    has_origin = sa.exists().where(
        TimelineItemRow.project == ItemRow.project,
        TimelineItemRow.item_id == ItemRow.id,
        TimelineItemRow.kind.in_(("reasoning", "compaction")),
        TimelineItemRow.origin != "",
    )
    key = (ItemRow.project, ItemRow.id)
    last = ("", "")

    async def read(tx: CrossProjectTransaction) -> list[ItemRow]:
        query = sa.select(ItemRow).where(sa.tuple_(*key) > last, has_origin).order_by(*key)
        return list(await tx.session.scalars(query.limit(ROWS_AT_ONCE)))

    while rows := await database.transactions.read(read):
        for row in rows:
            yield row
        last = (rows[-1].project, rows[-1].id)


@dataclass(frozen=True)
class BlobCheck:
    """Reads all blobs that rows refer to."""

    database: ReadOnlyDatabase
    blobs: BlobStore
    report: Report
    quick: bool

    async def run(self, grace: timedelta, progress: Callable[[int], None]) -> None:
        """Check all blobs, and count those without a row that are older than `grace`."""
        read = self.database.transactions.read
        owner = await self.blobs.installation()
        installation = await read(lambda tx: read_secret(tx.session, INSTALLATION))
        if owner != (None if installation is None else installation.hex()):
            detail = "the blobs belong to another database, or have no owner"
            self.report.add("installation", str(owner), detail)
        async for group in reference_groups(lambda work: read(lambda tx: work(tx.session))):
            await for_each(group, self._check)
            progress(self.report.blobs)
        old = datetime.now(UTC) - grace
        async for stored in self.blobs.keys():
            keys = {each.key for each in stored if each.touched_at <= old}
            orphans = await find_orphans(self.database.transactions, BLOB_COLUMNS, keys)
            self.report.unreferenced += len(orphans)

    async def _check(self, reference: BlobReference) -> None:
        self.report.blobs += 1
        self.report.blob_bytes += reference.size_bytes
        problem = await self._problem(reference)
        if problem is not None and await self._is_referenced(reference):
            subject = f"{reference.table} {reference.object_id} of project {reference.project}"
            self.report.add(problem[0], subject, f"blob {reference.key}: {problem[1]}")

    async def _problem(self, reference: BlobReference) -> tuple[str, str] | None:
        size, digest = reference.size_bytes, hashlib.sha256()
        first = max(size - 1, 0) if self.quick else 0
        try:
            async with aclosing(self.blobs.read(reference.key, first, size - first)) as chunks:
                async for chunk in chunks:
                    digest.update(chunk)
        except BlobMissing:
            return "blob_missing", f"it is gone, or has less than {size} bytes"
        except (OSError, StorageFailed) as error:
            return "blob_unreadable", str(error)
        if self.quick or reference.sha256 in ("", digest.hexdigest()):
            return None
        return "blob_changed", f"its SHA-256 is {digest.hexdigest()}, not {reference.sha256}"

    async def _is_referenced(self, reference: BlobReference) -> bool:
        """Whether the row is still there: objects are deleted meanwhile."""
        keys = [reference.key]
        return not await find_orphans(self.database.transactions, BLOB_COLUMNS, keys)
