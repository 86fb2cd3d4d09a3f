"""Backs up an installation while it runs.

Deletions of blobs are suspended first, then the database is copied in one snapshot, then the blobs
that the copy refers to. So each of them is in the backup, whatever is deleted meanwhile.
"""

import asyncio
import hashlib
import json
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from control_svc.backup.database_copy import copy_sqlite, copy_tables
from control_svc.backup.journal import NewBackup, prune, remove_files
from control_svc.backup.layout import (
    BLOB_LIST,
    LOCK_NAME,
    BackupFolder,
    BlobEntry,
    LostBlob,
    Manifest,
    TableCopy,
    file_digest,
    file_names,
    write_lines,
)
from control_svc.backup.place import check_place
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
    blob_location,
    cancel_and_wait,
    data_folder,
    database_url,
    open_store,
)
from control_svc.db import migrations
from control_svc.db.database_errors import translate_database_errors
from control_svc.db.engine import FILE_NAME, ReadOnlyDatabase, open_read_only
from svc_kit.errors import BlobMissing
from svc_kit.lifecycle import StartupError
from svc_kit.local_files import lock_folder

_SUSPENSION_S: Final = 600.0
_RENEWAL_S: Final = 60.0
_REFERENCES: Final = "references.jsonl"


class BlobChanged(Exception):
    """The bytes of a blob do not have its digest."""


class _DatabaseCopy(NamedTuple):
    revision: str
    installation: str
    tables: Sequence[TableCopy] = ()


async def back_up(
    settings: ControlSettings, root: Path, *, keep: int | None, progress: Callable[[int], None]
) -> Manifest:
    """Add a backup to a folder; then remove all but the newest `keep`, unless it is None.

    `progress` gets the number of blobs so far. Raises StartupError, StorageFailed,
    UpstreamUnavailable or OSError.
    """
    folder = BackupFolder(root)
    remedy = "wait until it has ended, or choose another folder"
    check_place(settings, root)
    async with open_read_only(database_url(settings), data_folder(settings)) as database:
        installation = await _read_installation(database)
        folder.check_owner(installation)
        with lock_folder(root, LOCK_NAME, holder="`corral backup`", remedy=remedy):
            folder.check_owner(installation)
            folder.claim(installation)
            remove_files(folder, installation)
            store = open_store(*blob_location(settings))
            with NewBackup(folder, installation, datetime.now(UTC)) as new:
                manifest = await _back_up(folder, new, database, store, progress)
                new.complete(manifest)
            await store.record_backup(manifest.mark)
            try:
                prune(folder, installation, keep)
            except StartupError as error:
                raise StartupError(
                    f"backup {new.id} is complete, but no other was removed: {error}"
                ) from error
    return manifest


async def _back_up(
    folder: BackupFolder,
    new: NewBackup,
    database: ReadOnlyDatabase,
    store: BlobStore,
    progress: Callable[[int], None],
) -> Manifest:
    blobs = _BlobCopier(store, folder, new)
    references = new.new_file(_REFERENCES)
    async with suspended_deletions(store, new.id):
        mark = datetime.now(UTC)
        copy = await _copy_database(database, new)
        await blobs.run(references, progress)
    write_lines(new.new_file(BLOB_LIST), blobs.entries)
    references.unlink()
    kind = "postgresql" if database.file is None else "sqlite"
    names = sorted(file_names(kind, copy.tables))
    return Manifest(
        backup_id=new.id,
        mark=mark,
        release=version("corral"),
        database=kind,
        revision=copy.revision,
        installation=copy.installation,
        tables=copy.tables,
        files={name: file_digest(new.path / name) for name in names},
        num_blobs=len(blobs.entries),
        num_bytes=sum(entry.size_bytes for entry in blobs.entries),
        copied_bytes=blobs.copied_bytes,
        lost=blobs.lost,
    )


@asynccontextmanager
async def suspended_deletions(store: BlobStore, holder: str) -> AsyncIterator[None]:
    """Suspend deletions of blobs while the context is open. Raises StorageFailed.

    If this process is killed, they resume after ten minutes.
    """

    async def renew() -> None:
        while True:
            await asyncio.sleep(_RENEWAL_S)
            await store.suspend_deletions(holder, _SUSPENSION_S)

    await store.suspend_deletions(holder, _SUSPENSION_S)
    renewal = asyncio.create_task(renew())
    try:
        yield
        if renewal.done():
            renewal.result()  # it has failed
    finally:
        await cancel_and_wait(renewal)
        await store.suspend_deletions(holder, 0)


async def _read_installation(database: ReadOnlyDatabase) -> str:
    async with translate_database_errors(), database.engine.connect() as connection:
        return (await _read_identity(connection)).installation


async def _copy_database(database: ReadOnlyDatabase, new: NewBackup) -> _DatabaseCopy:
    """Copy the database and the list of its blobs. Raises StartupError."""
    if database.file is None:
        async with translate_database_errors(), database.engine.connect() as connection:
            copy = await _read_facts(connection, new.path)
            return copy._replace(tables=await copy_tables(connection, new.new_file))
    paths = [new.new_file(f"{FILE_NAME}{suffix}") for suffix in ("", "-journal", "-wal", "-shm")]
    try:
        await asyncio.to_thread(copy_sqlite, database.file, paths[0])
    except sqlite3.Error as error:
        raise StartupError(f"{database.file} cannot be copied: {error}") from error
    async with open_read_only(None, new.path) as copied, copied.engine.connect() as connection:
        return await _read_facts(connection, new.path)


async def _read_facts(connection: AsyncConnection, place: Path) -> _DatabaseCopy:
    copy = await _read_identity(connection)
    with (place / _REFERENCES).open("w") as file:
        async for group in reference_groups(lambda read: read(connection)):
            file.writelines(json.dumps(reference) + "\n" for reference in group)
    return copy


async def _read_identity(connection: AsyncConnection) -> _DatabaseCopy:
    revision = await connection.run_sync(migrations.read_revision)
    installation = revision and await read_secret(connection, INSTALLATION)
    if not revision or not installation:
        raise StartupError("the database is empty: there is nothing to back up")
    return _DatabaseCopy(revision, installation.hex())


@dataclass
class _BlobCopier:
    """Copies blobs to a backup folder, unless it has them already."""

    store: BlobStore
    folder: BackupFolder
    new: NewBackup
    entries: list[BlobEntry] = field(default_factory=list)
    lost: list[LostBlob] = field(default_factory=list)
    copied_bytes: int = 0
    _locks: defaultdict[str, asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock), init=False
    )
    """By digest."""

    async def run(self, references: Path, progress: Callable[[int], None]) -> None:
        """Copy the blobs of a list. Raises StorageFailed."""
        with references.open() as file:
            while lines := list(islice(file, ROWS_AT_ONCE)):
                await for_each([BlobReference(*json.loads(line)) for line in lines], self._copy)
                progress(len(self.entries))

    async def _copy(self, reference: BlobReference) -> None:
        key, size_bytes = reference.key, reference.size_bytes
        try:
            digest = reference.sha256 or await self._digest(reference)
            async with self._locks[digest]:
                if self.folder.blobs.size(digest) != size_bytes:
                    entry = BlobEntry(key, size_bytes, digest)
                    self.new.begin_blob(digest)
                    await copy_blob(self.store, key, self.folder.blobs, digest, entry)
                    self.copied_bytes += size_bytes
        except (BlobMissing, BlobChanged) as error:
            subject = f"{reference.table} {reference.object_id} of project {reference.project}"
            self.lost.append(LostBlob(key, subject, str(error)))
        else:
            self.entries.append(BlobEntry(key, size_bytes, digest))

    async def _digest(self, reference: BlobReference) -> str:
        digest = hashlib.sha256()
        async with aclosing(self.store.read(reference.key, 0, reference.size_bytes)) as chunks:
            async for chunk in chunks:
                digest.update(chunk)
        return digest.hexdigest()


async def copy_blob(
    source: BlobStore, key: str, target: BlobStore, new_key: str, entry: BlobEntry
) -> None:
    """Copy a blob from one store to another under a new key, and compare its digest.

    Raises BlobMissing, BlobChanged or StorageFailed; the target has no blob then.
    """
    async with target.create(new_key) as sink:
        async with aclosing(source.read(key, 0, entry.size_bytes)) as chunks:
            async for chunk in chunks:
                await sink.write(chunk)
        if (digest := await sink.sha256()) != entry.sha256:
            raise BlobChanged(f"its SHA-256 is {digest}, not {entry.sha256}")
        await sink.commit()
