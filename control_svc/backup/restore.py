"""Restores a backup into an empty place, and verifies backups."""

import asyncio
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractContextManager,
    ExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from pathlib import Path
from typing import BinaryIO

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_svc.backup.backup import BlobChanged, copy_blob
from control_svc.backup.database_copy import check_sqlite, restore_tables
from control_svc.backup.layout import BackupFolder, BlobEntry, Manifest, file_digest
from control_svc.backup.references import for_each, read_secret
from control_svc.blobs.store import BlobStore, run_shielded
from control_svc.config import ControlSettings
from control_svc.core import (
    INSTALLATION,
    blob_location,
    data_folder,
    database_url,
    open_blobs,
    open_store,
)
from control_svc.db import migrations
from control_svc.db.database_errors import translate_database_errors
from control_svc.db.engine import (
    FILE_NAME,
    LOCK_NAME,
    lock_data_folder,
    open_database,
    sqlite_file,
)
from control_svc.vector_stores.search.pgvector import add_vector_column
from svc_kit.errors import BlobMissing, DomainError
from svc_kit.lifecycle import StartupError
from svc_kit.local_files import atomic_file, open_regular


async def restore(
    settings: ControlSettings,
    root: Path,
    backup_id: str | None,
    progress: Callable[[int], None],
) -> Manifest:
    """Restore a backup, None for the newest, where there is nothing yet; services must not run.

    Blobs come before the database: what a killed restore leaves does not start. One that fails
    leaves nothing. Raises StartupError, StorageFailed, UpstreamUnavailable or OSError.
    """
    folder, url, data = BackupFolder(root), database_url(settings), data_folder(settings)
    manifest = folder.read(backup_id)
    file = sqlite_file(url, data)
    kind = "postgresql" if file is None else "sqlite"
    if manifest.database != kind:
        raise StartupError(f"the backup is of {manifest.database}, the settings are for {kind}")
    if not migrations.is_known(manifest.revision):
        raise StartupError(
            f"the backup has the schema {manifest.revision}, which this release does not know:"
            f" it was made by a later one ({manifest.release})"
        )
    await _check_files(folder, manifest)
    with ExitStack() as places:
        if file is None:
            places.enter_context(_removed_on_failure(data, nullcontext()))
            await _restore_postgres(settings, folder, manifest, progress)
            return manifest
        for place in {file.parent.resolve(), data.resolve()}:
            places.enter_context(_removed_on_failure(place, lock_data_folder(place)))
        if file.exists():
            raise StartupError(f"{file} exists: a backup is restored only where nothing is")
        async with _restored_blobs(settings, folder, manifest, progress):
            with atomic_file(file) as draft:
                await asyncio.to_thread(_copy_database, folder, manifest, draft)
    return manifest


async def _check_files(folder: BackupFolder, manifest: Manifest) -> None:
    """Check the files of a backup, and that its database is one. Raises StartupError."""
    await asyncio.to_thread(folder.check_files, manifest)
    if manifest.database == "sqlite":
        file = folder.root / manifest.backup_id / FILE_NAME
        await asyncio.to_thread(check_sqlite, file, manifest)


@contextmanager
def _removed_on_failure(place: Path, lock: AbstractContextManager[None]) -> Iterator[None]:
    """Lock a data folder. If the block fails, remove the lock file and the folders that were not
    there before, and are empty; blobs are removed by then.
    """
    blobs = place / "blobs"
    shards = [blobs / f"{number:02x}" for number in range(256)]
    folders = [*shards, blobs / "incoming", blobs / "suspensions", blobs, place, *place.parents]
    new = [folder for folder in folders if not folder.exists()]
    lock_file = place / LOCK_NAME
    is_locked_first = not lock_file.exists()
    with lock:
        try:
            yield
        except BaseException:
            if is_locked_first:
                lock_file.unlink(missing_ok=True)
            for folder in new:
                with suppress(OSError):  # it was not created, or others have put files there
                    folder.rmdir()
            raise


def _copy_database(folder: BackupFolder, manifest: Manifest, draft: BinaryIO) -> None:
    """Copy the file of SQLite. Raises StartupError if it has changed since it was checked."""
    os.fchmod(draft.fileno(), 0o600)
    with open_regular(folder.root / manifest.backup_id / FILE_NAME) as source:
        shutil.copyfileobj(source, draft, 1 << 20)
    draft.flush()
    os.fsync(draft.fileno())
    if file_digest(Path(draft.name)) != manifest.files[FILE_NAME]:
        raise StartupError("the backup is damaged: its database was changed meanwhile")


async def _restore_postgres(
    settings: ControlSettings,
    folder: BackupFolder,
    manifest: Manifest,
    progress: Callable[[int], None],
) -> None:
    async with open_database(database_url(settings), data_folder(settings)) as database:
        await migrations.check_empty(database.migrator)
        async with _restored_blobs(settings, folder, manifest, progress):
            # Others may have created tables meanwhile. If this fails, it has created none.
            async with translate_database_errors(), database.migrator.begin() as connection:
                await migrations.create(connection, manifest.revision)
                place = folder.root / manifest.backup_id
                await restore_tables(connection, place, manifest.tables)
                await _check_installation(connection, manifest)
            try:
                await migrations.upgrade(database.migrator)
                await add_vector_column(database.migrator)
            except BaseException:
                await run_shielded(_drop_tables(database.migrator))
                raise


async def _check_installation(connection: AsyncConnection, manifest: Manifest) -> None:
    installation = await read_secret(connection, INSTALLATION)
    if installation is None or installation.hex() != manifest.installation:
        raise StartupError("the backup is damaged: its database is of another installation")


async def _drop_tables(migrator: AsyncEngine) -> None:
    with suppress(DomainError, StartupError):  # the database is gone; the first error is reported
        await migrations.downgrade(migrator, "base")
        async with translate_database_errors(), migrator.begin() as connection:
            await connection.execute(sa.text("DROP TABLE alembic_version"))


@asynccontextmanager
async def _restored_blobs(
    settings: ControlSettings,
    folder: BackupFolder,
    manifest: Manifest,
    progress: Callable[[int], None],
) -> AsyncIterator[None]:
    """Copy the blobs; if that or the block fails, delete them again."""
    location = blob_location(settings)
    store, place = open_store(*location), location[0] or location[2]
    async for keys in store.keys():
        if keys:
            raise StartupError(f"{place} has files: a backup is restored only where nothing is")
    owner = await store.installation()

    async def copy(entry: BlobEntry) -> None:
        await copy_blob(folder.blobs, entry.sha256, store, entry.key, entry)

    try:
        await open_blobs(*location, manifest.installation)
        await _for_all(folder, manifest, copy, progress)
        yield
    except BaseException:
        await run_shielded(_delete_blobs(folder, manifest, store))
        if owner is None:
            await store.unclaim(manifest.installation)
        raise


async def _delete_blobs(folder: BackupFolder, manifest: Manifest, store: BlobStore) -> None:
    """Delete what was copied into a store that was empty before: all blobs of the list."""
    with suppress(StartupError):  # nothing was copied from where it cannot be read
        for group in folder.entries(manifest.backup_id):
            await store.delete([entry.key for entry in group])


async def verify(root: Path, backup_id: str | None, progress: Callable[[int], None]) -> Manifest:
    """Read a whole backup, None for the newest, and compare all digests. Raises StartupError."""
    folder = BackupFolder(root)
    manifest = folder.read(backup_id)
    await _check_files(folder, manifest)

    async def read(entry: BlobEntry) -> None:
        digest = hashlib.sha256()
        async with aclosing(folder.blobs.read(entry.sha256, 0, entry.size_bytes)) as chunks:
            async for chunk in chunks:
                digest.update(chunk)
        if digest.hexdigest() != entry.sha256:
            raise BlobChanged(f"its SHA-256 is {digest.hexdigest()}")

    await _for_all(folder, manifest, read, progress)
    return manifest


async def _for_all(
    folder: BackupFolder,
    manifest: Manifest,
    work: Callable[[BlobEntry], Awaitable[None]],
    progress: Callable[[int], None],
) -> None:
    """Run work for all blobs of a backup. Raises StartupError if one is damaged."""

    async def run(entry: BlobEntry) -> None:
        try:
            await work(entry)
        except (BlobMissing, BlobChanged) as error:
            raise StartupError(
                f"the backup is damaged: blob {entry.sha256} is missing or was changed"
            ) from error

    num_done = 0
    for group in folder.entries(manifest.backup_id):
        await for_each(group, run)
        num_done += len(group)
        progress(num_done)
    if num_done != manifest.num_blobs:
        raise StartupError(
            f"the backup is damaged: its list has {num_done} blobs, its manifest"
            f" {manifest.num_blobs}"
        )
