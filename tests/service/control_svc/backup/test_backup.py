"""`corral backup` and `corral restore` on both databases."""

import asyncio
import gzip
import json
import math
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from prometheus_client import CollectorRegistry

from control_svc.backup.backup import back_up, suspended_deletions
from control_svc.backup.check import check
from control_svc.backup.database_copy import copy_tables
from control_svc.backup.restore import restore
from control_svc.base.ids import PART
from control_svc.blobs.last_backup import show_last_backup
from control_svc.blobs.local import FolderBlobs
from control_svc.blobs.s3 import open_bucket
from control_svc.config import ControlSettings
from control_svc.core import blob_location, open_store
from control_svc.db import migrations
from control_svc.db.engine import open_read_only
from control_svc.items.model import Message, Role, Text
from control_svc.items.queries import TimelineQueries
from control_svc.slices import METADATA
from control_svc.vector_stores.search.chunk_index import TABLE
from svc_kit.errors import FileNotFound
from svc_kit.local_files import lock_folder
from svc_kit.metrics import BackupMetrics
from tests.service.control_svc.backup.test_check import make_item
from tests.support.installation import Installation
from tests.support.postgres import create_database
from tests.support.s3 import CREDENTIALS, run_s3_bucket

SETTINGS: dict[str, Any] = {"listen": "127.0.0.1:0", "management_listen": None}
MakePlace = Callable[[str], Awaitable[Installation]]
Rows = dict[str, list[tuple[Any, ...]]]


@pytest.fixture
def make_place(tmp_path: Path, database_url: str | None) -> MakePlace:
    """Makes places of the same kind without anything, by name."""

    async def make(name: str) -> Installation:
        url = database_url
        if url is not None:
            server = re.sub(r"/test_\w+\?", "/NAME?", url)
            url = await asyncio.to_thread(create_database, server)
        return Installation(ControlSettings(**SETTINGS, data_dir=tmp_path / name, database_url=url))

    return make


@pytest.fixture
async def installation(tmp_path: Path, database_url: str | None) -> Installation:
    installation = await Installation.make(tmp_path / "one", database_url)
    async with installation.run() as client:
        await client.create(b"12345", filename="one.txt")
        await client.create(b"12345", filename="copy.txt")
        await client.create(b"", filename="empty.txt")
        upload = await client.create_upload(4)
        await client.add_part(upload.id, b"abcd")
    async with installation.database() as database:
        message = Message(role=Role.USER, content=(Text(text='null \x00, tab \t, \\N and "ä€𝄞"'),))
        await database.transactions.of("default").write(
            lambda tx: TimelineQueries(tx).append("conv_1", [make_item(message)])
        )
    return installation


def ignore(_num_blobs: int) -> None:
    """Progress that nobody watches."""


async def rows(installation: Installation) -> Rows:
    async with installation.database() as database, database.writer.connect() as connection:
        found = {
            table.name: sorted(map(tuple, await connection.execute(sa.select(table))), key=repr)
            for table in METADATA.sorted_tables
        }
        index = await connection.execute(sa.text(f"SELECT * FROM {TABLE}"))  # noqa: S608
        return {**found, TABLE: sorted(map(tuple, index), key=repr)}


async def test_a_restored_backup_is_the_installation(
    installation: Installation, tmp_path: Path, make_place: MakePlace
) -> None:
    """Each row and each byte; taken while the service runs, and checked after the restore."""
    folder = tmp_path / "backups"
    async with installation.run():
        manifest = await installation.report("backup", folder)
    restored = await make_place("two")

    assert (await restored.corral("restore", folder)).exit_code == 0

    assert (manifest["num_blobs"], manifest["num_bytes"]) == (4, 14)
    assert manifest["copied_bytes"] == 9, "equal bytes are stored once"
    before, after = await rows(installation), await rows(restored)
    assert before == after
    assert len(after["files"]) == 3
    assert (await restored.report("check"))["problems"] == []
    async with restored.run() as client:
        files = {file.filename: file.id for file in (await client.page()).files}
        assert await client.read(files["one.txt"]) == b"12345"
        assert await client.read(files["empty.txt"]) == b""
        upload_id = next(row[1] for row in after["uploads"])
        part_id = next(row[2] for row in after["upload_parts"])
        assert part_id.startswith(PART)
        completed = await client.complete(upload_id, part_id)
        assert await client.read(completed.file.id) == b"abcd"


async def test_the_time_of_the_newest_backup_is_a_metric(
    installation: Installation, tmp_path: Path
) -> None:
    """NaN without one."""
    registry = CollectorRegistry()
    metrics = BackupMetrics(registry)
    store = open_store(*blob_location(installation.settings))
    await show_last_backup(store, metrics)
    before = registry.get_sample_value("corral_last_backup_timestamp_seconds")
    made = [
        await back_up(installation.settings, tmp_path / "backups", keep=None, progress=ignore)
        for _ in range(2)
    ]
    await show_last_backup(store, metrics)

    after = registry.get_sample_value("corral_last_backup_timestamp_seconds")
    assert before is not None
    assert math.isnan(before)
    assert after == made[-1].mark.timestamp()


async def test_a_second_backup_copies_only_new_bytes(
    installation: Installation, tmp_path: Path
) -> None:
    """Each backup in the folder can be restored until `--keep` removes it with its own bytes."""
    folder = tmp_path / "backups"
    first = await installation.report("backup", folder)
    async with installation.run() as client:
        files = {file.filename: file.id for file in (await client.page()).files}
        for name in ("one.txt", "copy.txt"):
            await client.delete(files[name])
        await client.create(b"123456")
    second = await installation.report("backup", folder)
    ids = [first["backup_id"], second["backup_id"]]
    assert second["copied_bytes"] == 6
    assert await listed_ids(installation, folder) == ids
    for backup_id in ids:
        await installation.report("restore", folder, "--verify", "--backup", backup_id)

    third = await installation.report("backup", folder, "--keep", "1")

    assert third["copied_bytes"] == 0
    assert await listed_ids(installation, folder) == [third["backup_id"]]
    await installation.report("restore", folder, "--verify")
    sizes = sorted(path.stat().st_size for path in (folder / "blobs").glob("??/*"))
    assert sizes == [0, 4, 6]


async def listed_ids(installation: Installation, folder: Path) -> list[str]:
    result = await installation.corral("restore", folder, "--list", "--json")
    return [json.loads(line)["backup_id"] for line in result.stdout.splitlines()]


async def test_bytes_are_not_deleted_during_a_backup(installation: Installation) -> None:
    """The object is gone at once; the sweeper deletes its bytes after the backup."""
    store = FolderBlobs(installation.blobs)
    async with installation.run() as client:
        file = await client.create(b"deleted")
        blobs = set(installation.blobs.glob("??/*"))
        async with suspended_deletions(store, "backup"):
            await client.delete(file.id)
            with pytest.raises(FileNotFound):
                await client.get(file.id)
            assert set(installation.blobs.glob("??/*")) == blobs
        other = await client.create(b"more")
        await client.delete(other.id)
        assert set(installation.blobs.glob("??/*")) == blobs


async def test_lost_bytes_do_not_stop_a_backup(installation: Installation, tmp_path: Path) -> None:
    """They are named, with exit code 3; the rest is complete."""
    for path in installation.blobs.glob("??/*"):
        if path.stat().st_size == 4:
            path.unlink()

    manifest = await installation.report("backup", tmp_path / "backups", code=3)

    (lost,) = manifest["lost"]
    assert lost["object"].startswith("upload_parts ")
    assert manifest["num_blobs"] == 3
    await installation.report("restore", tmp_path / "backups", "--verify")


async def test_a_backup_is_not_restored_where_something_is(
    installation: Installation, tmp_path: Path, make_place: MakePlace
) -> None:
    """Not over a database, and not into a folder with files; nothing is changed."""
    folder = tmp_path / "backups"
    await installation.report("backup", folder)
    before = await rows(installation)
    over = await installation.corral("restore", folder)
    other = (await make_place("two")).settings.database_url
    beside = Installation(
        ControlSettings(
            **SETTINGS,
            data_dir=installation.settings.data_dir,
            database_url=other or f"sqlite:///{tmp_path / 'two.sqlite3'}",
        )
    )
    into = await beside.corral("restore", folder)

    reason = "control.sqlite3 exists" if other is None else "has tables of Corral"
    assert reason in str(over.exception)
    assert "has files: a backup is restored only where nothing is" in str(into.exception)
    assert await rows(installation) == before
    assert (await installation.report("check"))["problems"] == []


def remove_blob(backup: Path) -> None:
    next((backup.parent / "blobs").glob("??/*")).unlink()


def change_database(backup: Path) -> None:
    path = next(path for path in backup.iterdir() if path.name.startswith(("control", "files")))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def remove_list(backup: Path) -> None:
    (backup / "blobs.jsonl.gz").unlink()


def cut_manifest(backup: Path) -> None:
    manifest = backup / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-10])


def remove_manifest(backup: Path) -> None:
    """Leave the backup as if it had been killed."""
    (backup / "manifest.json").unlink()


def make_newer(backup: Path) -> None:
    """Let a later release have made the backup."""
    replace_in_manifest(backup, "revision", "9999")


def make_foreign(backup: Path) -> None:
    """Let the backup be of the other kind of database."""
    replace_in_manifest(backup, "database", "another")


def replace_in_manifest(backup: Path, name: str, value: str) -> None:
    path = backup / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (remove_blob, "the backup is damaged: blob"),
        (change_database, "is missing or was changed"),
        (remove_list, "is missing or was changed"),
        (cut_manifest, "is damaged, or of a later release"),
        (remove_manifest, "there is no complete backup"),
        (make_newer, "it was made by a later one"),
        (make_foreign, "the backup is of another, the settings are for"),
    ],
)
async def test_a_damaged_backup_is_refused(
    installation: Installation,
    tmp_path: Path,
    make_place: MakePlace,
    damage: Callable[[Path], None],
    problem: str,
) -> None:
    """With the reason; nothing is left where it was to be restored."""
    folder = tmp_path / "backups"
    manifest = await installation.report("backup", folder)
    damage(folder / manifest["backup_id"])
    restored = await make_place("two")

    result = await restored.corral("restore", folder)

    assert problem in str(result.exception)
    assert not (tmp_path / "two").exists()
    assert (await installation.report("check"))["problems"] == []


async def test_a_folder_takes_one_backup_at_a_time(
    installation: Installation, tmp_path: Path
) -> None:
    """The second one is refused with the reason."""
    folder = tmp_path / "backups"
    with lock_folder(folder, "backup.lock", holder="`corral backup`", remedy="wait"):
        refused = await installation.corral("backup", folder)

    assert "another `corral backup` uses" in str(refused.exception)
    await installation.report("backup", folder)


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
async def test_all_tables_are_copied_in_one_snapshot(
    installation: Installation, tmp_path: Path, database_url: str | None
) -> None:
    """What is committed after the snapshot began is in no table. (SQLite copies in one step.)"""
    async with (
        open_read_only(database_url, tmp_path) as database,
        database.engine.connect() as connection,
    ):
        await connection.execute(sa.text("SELECT 1 FROM uploads"))
        async with installation.run() as client:
            await client.create(b"late", filename="late.txt")
        tables = await copy_tables(connection, tmp_path.joinpath)

    (files,) = [table for table in tables if table.table == "files"]
    copied = gzip.decompress((tmp_path / files.file_name).read_bytes()).decode()
    assert copied.count(".txt") == 3
    assert "late" not in copied


async def test_a_later_release_restores_a_backup_and_upgrades_it(
    installation: Installation, tmp_path: Path, make_place: MakePlace
) -> None:
    """A backup at the revision before is at the newest one after the restore and a start."""
    await installation.report("backup", tmp_path / "newest")
    earlier, later = await make_place("two"), await make_place("three")
    await earlier.report("restore", tmp_path / "newest")
    async with earlier.database() as database:
        await migrations.downgrade(database.migrator, "-1")

    manifest = await earlier.report("backup", tmp_path / "earlier")
    await later.report("restore", tmp_path / "earlier")
    async with later.run() as client:
        assert len((await client.page()).files) == 3

    assert manifest["revision"] != migrations.head()
    before, after = await rows(installation), await rows(later)
    for found in (before, after):
        del found["document_conversions"]  # of the migration
    assert {name: len(found) for name, found in after.items()} == {
        name: len(found) for name, found in before.items()
    }
    assert (await later.corral("db", "check")).exit_code == 0


async def test_a_bucket_is_backed_up_and_restored(
    installation: Installation, tmp_path: Path, make_place: MakePlace
) -> None:
    with run_s3_bucket() as bucket:
        url = bucket.url("files")
        keys = {
            "blobs_access_key_id": CREDENTIALS.access_key_id,
            "blobs_secret_access_key": CREDENTIALS.secret_access_key,
        }
        settings = (await make_place("two")).settings.model_copy(update={"blobs_url": url, **keys})
        in_bucket = Installation(settings)
        before = await rows(installation)
        await back_up(installation.settings, tmp_path / "one-backup", keep=None, progress=ignore)
        await restore(in_bucket.settings, tmp_path / "one-backup", None, progress=ignore)
        async with in_bucket.run() as client:
            files = {file.filename: file.id for file in (await client.page()).files}
            assert await client.read(files["one.txt"]) == b"12345"
        again = await back_up(
            in_bucket.settings, tmp_path / "two-backup", keep=None, progress=ignore
        )
        report = await check(in_bucket.settings, quick=False, progress=ignore)
        leftover = open_bucket(url, CREDENTIALS)
        assert not await leftover.is_deletion_suspended()
        assert await leftover.last_backup() == again.mark

    assert (again.num_blobs, again.num_bytes, again.lost) == (4, 14, [])
    assert (report.blobs, report.problems) == (4, [])
    assert await rows(in_bucket) == before
    await installation.report("restore", tmp_path / "two-backup", "--verify")
