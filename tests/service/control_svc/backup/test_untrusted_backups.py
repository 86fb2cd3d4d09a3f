"""Restores believe nothing that they read, and leave nothing when they refuse it."""

import asyncio
import gzip
import hashlib
import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command

from control_svc.backup.database_copy import check_sqlite, copy_sqlite
from control_svc.backup.layout import Manifest
from control_svc.backup.restore import restore
from control_svc.core import INSTALLATION
from control_svc.db import migrations
from control_svc.db.engine import FILE_NAME, open_database
from svc_kit.errors import StorageFailed
from svc_kit.lifecycle import StartupError
from tests.support.earlier_release import unpack
from tests.support.installation import Installation
from tests.support.postgres import create_database
from tests.support.s3 import CREDENTIALS, run_s3_bucket
from tests.support.trees import tree

KEY, DIGEST = "ab" * 16, "cd" * 32
Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a backup of an installation on SQLite."""
    return asyncio.run(make_backup(tmp_path_factory.mktemp("sound"), None))


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "backups")


async def make_backup(root: Path, url: str | None) -> Path:
    installation = await Installation.make(root / "data", url)
    async with installation.run() as client:
        for content in (b"12345", b"6"):
            await client.create(content)
    await installation.report("backup", root / "backups")
    return root / "backups"


def place_of(folder: Path) -> Path:
    (manifest,) = folder.glob("*/manifest.json")
    return manifest.parent


def change(folder: Path, **fields: Any) -> None:
    """Change the manifest; its digests become those of the files."""
    place = place_of(folder)
    manifest = json.loads((place / "manifest.json").read_text())
    files = {name: sha256(place / name) for name in manifest["files"]}
    (place / "manifest.json").write_text(json.dumps({**manifest, "files": files, **fields}))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def listing(*lines: bytes | list[Any]) -> Damage:
    def damage(folder: Path) -> None:
        with gzip.open(place_of(folder) / "blobs.jsonl.gz", "wb", compresslevel=1) as file:
            for line in lines:
                file.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
        change(folder)

    return damage


def key(text: str) -> Damage:
    """Let a sound blob have another key."""

    def damage(folder: Path) -> None:
        with gzip.open(place_of(folder) / "blobs.jsonl.gz") as file:
            entries = [json.loads(line) for line in file]
        listing(*([text, *entry[1:]] for entry in entries))(folder)

    return damage


def repeat(folder: Path) -> None:
    """List a sound blob twice."""
    with gzip.open(place_of(folder) / "blobs.jsonl.gz") as file:
        first, *others = file.readlines()
    listing(first, first, *others)(folder)


def content(name: str, text: bytes) -> Damage:
    """Replace a file of the backup, with its digest."""

    def damage(folder: Path) -> None:
        (place_of(folder) / name).write_bytes(text)
        change(folder)

    return damage


def manifest(**fields: Any) -> Damage:
    return lambda folder: change(folder, **fields)


def raw_manifest(text: bytes) -> Damage:
    def damage(folder: Path) -> None:
        (place_of(folder) / "manifest.json").write_bytes(text)

    return damage


def link(name: str) -> Damage:
    def damage(folder: Path) -> None:
        path = next(folder.glob(name))
        moved = folder.parent / "moved"
        path.rename(moved)
        path.symlink_to(moved)

    return damage


def sql(statement: str) -> Damage:
    """Change the database, with its digest."""

    def damage(folder: Path) -> None:
        with closing(sqlite3.connect(place_of(folder) / "control.sqlite3")) as database:
            database.executescript(statement)
        change(folder)

    return damage


def cut_page(folder: Path) -> None:
    path = place_of(folder) / "control.sqlite3"
    data = bytearray(path.read_bytes())
    data[4096:8192] = b"\xff" * 4096
    content("control.sqlite3", bytes(data))(folder)


def change_blob(folder: Path) -> None:
    blob = max((folder / "blobs").glob("??/*"))
    blob.write_bytes(b"x" * blob.stat().st_size)


DAMAGES: dict[str, tuple[Damage, str]] = {
    "key above": (key("../../../x"), "is not the key, size and SHA-256"),
    "absolute key": (key("/abs/x"), "is not the key, size and SHA-256"),
    "key with NUL": (key("\0" * 32), "is not the key, size and SHA-256"),
    "upper-case key": (key(KEY.upper()), "is not the key, size and SHA-256"),
    "digest above": (listing([KEY, 1, "../x"]), "is not the key, size and SHA-256"),
    "negative size": (listing([KEY, -1, DIGEST]), "is not the key, size and SHA-256"),
    "huge size": (listing([KEY, 1 << 80, DIGEST]), "is not the key, size and SHA-256"),
    "short entry": (listing([KEY]), "is not the key, size and SHA-256"),
    "repeated entry": (repeat, "cannot be read: it has blob "),
    "junk": (listing(b"{\n"), "cannot be read"),
    "NULs": (listing(bytes(100)), "cannot be read"),
    "deep": (listing(b"[" * 4000 + b"\n"), "cannot be read"),
    "giant line": (listing(*[b"x" * (1 << 20)] * 200), "a line is too long"),
    "no gzip": (content("blobs.jsonl.gz", b"junk"), "cannot be read"),
    "cut gzip": (content("blobs.jsonl.gz", gzip.compress(b"x" * 100)[:20]), "cannot be read"),
    "no blobs": (listing(), "its list has 0 blobs"),
    "no digests": (manifest(files={}), "must have the SHA-256 of blobs.jsonl.gz, control.sqlite3"),
    "file above": (manifest(files={"../../x": DIGEST}), "must have the SHA-256 of"),
    "id above": (manifest(backup_id="../../x"), "is not the manifest of"),
    "table above": (manifest(tables=[["../../x", ["a"]]]), "is not the manifest of"),
    "control character": (manifest(release="\x1b[31m"), "is not the manifest of"),
    "NUL in a field": (manifest(installation="\0"), "is not the manifest of"),
    "manifest of NULs": (raw_manifest(bytes(1000)), "is damaged, or of a later release"),
    "deep manifest": (raw_manifest(b"[" * 10**6), "is damaged, or of a later release"),
    "linked database": (link("*Z/control.sqlite3"), "is missing or was changed"),
    "linked list": (link("*Z/blobs.jsonl.gz"), "is missing or was changed"),
    "linked manifest": (link("*Z/manifest.json"), "cannot be read"),
    "linked backup": (link("*Z"), "is a link"),
    "linked blobs": (link("blobs"), "is a link"),
    "linked shard": (link("blobs/??"), "is a link"),
    "linked blob": (link("blobs/??/*"), "is missing or was changed"),
    "changed blob": (change_blob, "is missing or was changed"),
    "junk database": (content("control.sqlite3", b"junk" * 4096), "is not one of Corral"),
    "empty database": (content("control.sqlite3", b""), "is not one of Corral"),
    "damaged page": (cut_page, "the backup is damaged: its database is not"),
    "other revision": (sql("UPDATE alembic_version SET version_num = '0001'"), "at revision"),
    "no column": (sql("ALTER TABLE batches DROP COLUMN endpoint"), "batches.endpoint is missing"),
    "no table": (sql("DROP TABLE limits"), "limits.amount is missing"),
    "more columns": (sql("ALTER TABLE files ADD COLUMN x TEXT"), "files.x does not belong there"),
    "trigger": (
        sql("CREATE TRIGGER t AFTER INSERT ON files BEGIN DELETE FROM files; END"),
        "trigger t does not belong there",
    ),
    "changed trigger": (
        sql(
            "DROP TRIGGER audit_events_no_update; CREATE TRIGGER audit_events_no_update"
            " AFTER INSERT ON files BEGIN DELETE FROM files; END"
        ),
        "trigger audit_events_no_update is defined otherwise",
    ),
    "other secret": (sql("UPDATE secrets SET value = x'00'"), "of installation 00"),
    "no secret": (sql("DELETE FROM secrets"), "is not one of Corral"),
}


@pytest.mark.parametrize("name", DAMAGES)
async def test_a_damaged_backup_is_refused_without_a_trace(
    folder: Path, tmp_path: Path, name: str
) -> None:
    """With a reason; the sound one is restored there afterwards. `--verify` refuses it too."""
    damage, problem = DAMAGES[name]
    sound = shutil.copytree(folder, tmp_path / "sound")
    damage(folder)
    restored = Installation((await Installation.make(tmp_path / "other", None)).settings)
    restored = Installation(restored.settings.model_copy(update={"data_dir": tmp_path / "new"}))
    before = tree(tmp_path)

    refused = await restored.corral("restore", folder)
    verified = await restored.corral("restore", folder, "--verify")

    for result in (refused, verified):
        assert isinstance(result.exception, StartupError)
        assert problem in str(result.exception)
        assert str(result.exception).isprintable()
    assert tree(tmp_path) == before
    assert (await restored.corral("restore", sound)).exit_code == 0


def test_an_upgraded_database_is_like_a_new_one(tmp_path: Path) -> None:
    """Backups of an installation that began with release 0.1 are restored."""
    unpack("release-0.1", "sqlite", tmp_path)
    file = tmp_path / "control" / FILE_NAME
    with sa.create_engine(f"sqlite:///{file}").begin() as connection:
        command.upgrade(migrations.configuration(connection), migrations.head())
        query = sa.text("SELECT hex(value) FROM secrets WHERE name = :name")
        (installation,) = connection.execute(query, {"name": INSTALLATION}).one()
    copy_sqlite(file, tmp_path / "copy")

    check_sqlite(
        tmp_path / "copy",
        Manifest(
            backup_id="x",
            mark=datetime.now(UTC),
            release="x",
            database="sqlite",
            revision=migrations.head(),
            installation=installation.lower(),
            files={},
            num_blobs=0,
            num_bytes=0,
            copied_bytes=0,
        ),
    )


async def test_a_refused_restore_leaves_what_was_there(folder: Path, tmp_path: Path) -> None:
    """Empty folders and files of others, in the data folder too."""
    change_blob(folder)
    settings = (await Installation.make(tmp_path / "other", None)).settings
    restored = Installation(settings.model_copy(update={"data_dir": tmp_path / "new"}))
    (tmp_path / "new" / "control" / "blobs" / "ab").mkdir(parents=True)
    (tmp_path / "new" / "control" / "notes").write_text("of somebody")
    (tmp_path / "new" / "control" / "control.sqlite3.restoring").write_text("of somebody")
    before = tree(tmp_path)

    result = await restored.corral("restore", folder)

    assert isinstance(result.exception, StartupError)
    assert tree(tmp_path) == before


def junk_table(folder: Path) -> None:
    content("files.copy.gz", gzip.compress(b"junk\n"))(folder)


def cut_table(folder: Path) -> None:
    content("files.copy.gz", b"junk")(folder)


def other_table(folder: Path) -> None:
    """Let the rows of a table be those of one that is not Corral's."""
    place = place_of(folder)
    manifest = json.loads((place / "manifest.json").read_text())
    (place / "files.copy.gz").rename(place / "pg_class.copy.gz")
    manifest["files"]["pg_class.copy.gz"] = manifest["files"].pop("files.copy.gz")
    tables = [["pg_class" if name == "files" else name, each] for name, each in manifest["tables"]]
    (place / "manifest.json").write_text(json.dumps({**manifest, "tables": tables}))


async def test_a_refused_restore_leaves_an_empty_postgres_database(
    tmp_path: Path, postgres_url: str
) -> None:
    """For junk in a table, for another installation, and for blobs that were changed."""
    server = re.sub(r"/test_\w+\?", "/NAME?", postgres_url)
    urls = [await asyncio.to_thread(create_database, server) for _ in range(2)]
    sound = await make_backup(tmp_path / "one", urls[0])
    settings = (await Installation.make(tmp_path / "other", None)).settings
    new = {"data_dir": tmp_path / "new", "database_url": urls[1]}
    restored = Installation(type(settings)(**{**settings.model_dump(exclude_unset=True), **new}))
    damages: dict[str, Damage] = {
        "files.copy.gz": junk_table,
        "files.copy.gz: ": cut_table,
        "is of another installation": manifest(installation="00"),
        "is missing or was changed": change_blob,
        "its tables are not those of its revision: files.": other_table,
    }
    for problem, damage in damages.items():
        folder = shutil.copytree(sound, tmp_path / "damaged")
        damage(folder)
        result = await restored.corral("restore", folder)
        shutil.rmtree(folder)

        assert isinstance(result.exception, StartupError), result.exception
        assert problem in str(result.exception)
        assert not (tmp_path / "new").exists()
    assert (await restored.corral("restore", sound)).exit_code == 0


async def test_a_restore_keeps_tables_that_others_have_created_meanwhile(
    tmp_path: Path, postgres_url: str
) -> None:
    """While the blobs are copied. The tables are asked for again before any is created."""
    server = re.sub(r"/test_\w+\?", "/NAME?", postgres_url)
    urls = [await asyncio.to_thread(create_database, server) for _ in range(2)]
    sound = await make_backup(tmp_path / "one", urls[0])
    settings = (await Installation.make(tmp_path / "other", None)).settings
    new = {"data_dir": tmp_path / "new", "database_url": urls[1]}
    settings = type(settings)(**{**settings.model_dump(exclude_unset=True), **new})

    async def upgrade() -> None:
        async with open_database(urls[1], tmp_path) as database:
            await migrations.upgrade(database.migrator)
            async with database.migrator.begin() as connection:
                await connection.execute(sa.text("INSERT INTO secrets VALUES ('others', 'x')"))

    def create_tables(_num_copied: int) -> None:
        with ThreadPoolExecutor() as threads:
            threads.submit(asyncio.run, upgrade()).result()

    with pytest.raises(StartupError, match="the database has tables of Corral"):
        await restore(settings, sound, None, create_tables)

    async with open_database(urls[1], tmp_path) as database:
        await migrations.check(database.migrator)
        async with database.migrator.begin() as connection:
            names = list(await connection.scalars(sa.text("SELECT name FROM secrets")))
    assert names == ["others"]
    assert not (tmp_path / "new").exists()


async def test_a_refused_restore_leaves_nothing_in_a_bucket(folder: Path, tmp_path: Path) -> None:
    """Nor the name of the installation; a sound backup is restored there afterwards."""
    sound = shutil.copytree(folder, tmp_path / "sound")
    change_blob(folder)
    settings = (await Installation.make(tmp_path / "other", None)).settings
    with run_s3_bucket() as bucket:
        keys = CREDENTIALS._asdict().items()
        new = {f"blobs_{name}": value for name, value in keys} | {"blobs_url": bucket.url("files")}
        settings = settings.model_copy(update={**new, "data_dir": tmp_path / "new"})
        bucket.client.put_object(Bucket="corral-test", Key="files/notes", Body=b"of somebody")
        with pytest.raises((StartupError, StorageFailed)):
            await restore(settings, folder, None, lambda _: None)
        listed = bucket.client.list_objects_v2(Bucket="corral-test")["Contents"]

        assert [each["Key"] for each in listed] == ["files/notes"]
        assert not (tmp_path / "new").exists()
        await restore(settings, sound, None, lambda _: None)
