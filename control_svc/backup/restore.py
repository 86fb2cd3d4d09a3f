"""Restores a backup into an empty place, and verifies backups."""

import asyncio
import hashlib
import os
import shutil
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, aclosing
from pathlib import Path

from control_svc.backup.backup import BlobChanged, copy_blob
from control_svc.backup.database_copy import restore_tables
from control_svc.backup.layout import BackupFolder, BlobEntry, Manifest
from control_svc.backup.references import for_each
from control_svc.config import ControlSettings
from control_svc.db import migrations
from control_svc.db.engine import FILE_NAME, lock_data_folder, open_database, sqlite_file
from control_svc.db.transaction import translate_database_errors
from control_svc.deps import blob_location, data_folder, database_url, open_blobs, open_store
from control_svc.vector_stores.search.pgvector import add_vector_column
from svc_kit.errors import BlobMissing
from svc_kit.lifecycle import StartupError


async def restore(
    settings: ControlSettings,
    root: Path,
    backup_id: str | None,
    progress: Callable[[int], None],
) -> Manifest:
    """Restore a backup, None for the newest, where there is nothing yet; services must not run.

    Blobs come first and the database last: what an interrupted restore leaves does not start.
    Raises StartupError, StorageFailed, UpstreamUnavailable or OSError.
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
    folder.check_files(manifest)
    if file is None:
        await _restore_postgres(settings, folder, manifest, progress)
    else:
        with ExitStack() as locks:
            for place in {file.parent.resolve(), data.resolve()}:
                locks.enter_context(lock_data_folder(place))
            if file.exists():
                raise StartupError(f"{file} exists: a backup is restored only where nothing is")
            await _restore_blobs(settings, folder, manifest, progress)
            await asyncio.to_thread(_place_file, root / manifest.backup_id / FILE_NAME, file)
    return manifest


def _place_file(copy: Path, file: Path) -> None:
    draft = file.with_name(f"{file.name}.restoring")
    with copy.open("rb") as source, draft.open("wb") as target:
        draft.chmod(0o600)
        shutil.copyfileobj(source, target, 1 << 20)
        target.flush()
        os.fsync(target.fileno())
    draft.rename(file)


async def _restore_postgres(
    settings: ControlSettings,
    folder: BackupFolder,
    manifest: Manifest,
    progress: Callable[[int], None],
) -> None:
    async with open_database(database_url(settings), data_folder(settings)) as database:
        if await migrations.current(database.migrator) is not None:
            raise StartupError(
                "the database has tables of Corral: a backup is restored only where nothing is"
            )
        await _restore_blobs(settings, folder, manifest, progress)
        await migrations.upgrade_to(database.migrator, manifest.revision)
        async with translate_database_errors(), database.migrator.begin() as connection:
            place = folder.root / manifest.backup_id
            await restore_tables(connection, place, manifest.tables)
        await migrations.upgrade(database.migrator)
        await add_vector_column(database.migrator)


async def _restore_blobs(
    settings: ControlSettings,
    folder: BackupFolder,
    manifest: Manifest,
    progress: Callable[[int], None],
) -> None:
    location = blob_location(settings)
    async for keys in open_store(*location).keys():
        if keys:
            place = location[0] or location[2]
            raise StartupError(f"{place} has files: a backup is restored only where nothing is")
    store = await open_blobs(*location, manifest.installation)

    async def copy(entry: BlobEntry) -> None:
        await copy_blob(folder.blobs, entry.sha256, store, entry.key, entry)

    await _for_all(folder, manifest, copy, progress)


async def verify(root: Path, backup_id: str | None, progress: Callable[[int], None]) -> Manifest:
    """Read a whole backup, None for the newest, and compare all digests. Raises StartupError."""
    folder = BackupFolder(root)
    manifest = folder.read(backup_id)
    folder.check_files(manifest)

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
