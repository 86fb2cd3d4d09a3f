"""`corral check` on installations that are sound, and damaged in each way."""

import os
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from control_svc.base.ids import IdSource
from control_svc.config import ControlSettings
from control_svc.db.tables import SecretRow
from control_svc.db.transaction import Transaction
from control_svc.files.tables import UploadRow
from control_svc.items.model import Compaction, Content, Item, ItemStatus, Reasoning
from control_svc.items.queries import TimelineQueries
from control_svc.responses.content_cipher import ContentCipher
from control_svc.responses.model import Summary
from svc_kit.encryption import Sealer
from tests.support.installation import Installation

SOUND = {"blobs": 2, "blob_bytes": 9, "sealed": 2, "unreferenced": 0, "problems": []}
PROJECT = "default"


@pytest.fixture
async def installation(tmp_path: Path, database_url: str | None) -> Installation:
    """An installation with a file, a part of an upload, and two contents that it has encrypted."""
    installation = await Installation.make(tmp_path, database_url)
    async with installation.run() as client:
        await client.create(b"12345")
        upload = await client.create_upload(4)
        await client.add_part(upload.id, b"abcd")
    async with installation.database() as database:
        await database.transactions.of(PROJECT).write(add_sealed_items)
    return installation


async def add_sealed_items(tx: Transaction) -> None:
    """Store encrypted reasoning and a summary of a response, and what a caller made up."""
    key = await tx.session.get_one(SecretRow, "seal_key")
    cipher = ContentCipher(Sealer(key.value))
    summary = Summary(text="short", kept=(), replaces_all=True)
    contents: list[Content] = [
        Reasoning(text="", sealed=cipher.seal_reasoning(PROJECT, "thought")),
        Compaction(sealed=cipher.seal_summary(PROJECT, summary)),
    ]
    timeline = TimelineQueries(tx)
    await timeline.append("resp_1", [*map(make_item, contents)], origin="resp_1")
    await timeline.append("resp_1", [make_item(Compaction(sealed="made up"))])


def make_item(content: Content) -> Item:
    now = datetime.now(UTC)
    item_id = IdSource(lambda: now).new("rs_")
    return Item(id=item_id, status=ItemStatus.COMPLETED, created_at=now, content=content)


async def test_a_sound_installation_has_no_problems(installation: Installation) -> None:
    """Checked while it runs; what a caller has made up is not counted."""
    async with installation.run():
        report = await installation.report("check")

    assert report.pop("foreign_keys") >= 10
    assert report == SOUND


async def lose(installation: Installation) -> None:
    """Remove the bytes of the file."""
    blob_of_file(installation).unlink()


async def cut(installation: Installation) -> None:
    """Shorten the bytes of the file."""
    blob_of_file(installation).write_bytes(b"1234")


async def flip(installation: Installation) -> None:
    """Change the bytes of the file."""
    blob_of_file(installation).write_bytes(b"12346")


async def block(installation: Installation) -> None:
    """Put a folder where the bytes of the file were."""
    blob = blob_of_file(installation)
    blob.unlink()
    blob.mkdir()


async def orphan(installation: Installation) -> None:
    # The migrator has no foreign keys on SQLite.
    async with installation.database() as database, database.migrator.begin() as connection:
        if database.is_shared:
            await connection.execute(sa.text("SET session_replication_role = replica"))
        await connection.execute(sa.delete(UploadRow))


async def change_key(installation: Installation) -> None:
    await change_secret(installation, "seal_key", bytes(64))


async def change_owner(installation: Installation) -> None:
    """Replace the id of the database."""
    await change_secret(installation, "installation", bytes(16))


async def change_secret(installation: Installation, name: str, value: bytes) -> None:
    async with installation.database() as database, database.writer.begin() as connection:
        await connection.execute(
            sa.update(SecretRow).where(SecretRow.name == name).values(value=value)
        )


def blob_of_file(installation: Installation) -> Path:
    """The blob of the file, which has five bytes."""
    (path,) = [path for path in installation.blobs.glob("??/*") if path.stat().st_size == 5]
    return path


@pytest.mark.parametrize(
    ("damage", "kinds", "subject", "seen_quickly"),
    [
        (lose, ["blob_missing"], "files file-", True),
        (cut, ["blob_missing"], "files file-", True),
        (flip, ["blob_changed"], "files file-", False),
        (block, ["blob_missing"], "files file-", True),
        (orphan, ["foreign_key"], "upload_parts (project, upload_id)", True),
        (change_key, ["sealed", "sealed"], "items ", True),
        (change_owner, ["installation"], "", True),
    ],
)
async def test_damage_is_named(
    installation: Installation,
    damage: Callable[[Installation], Awaitable[None]],
    kinds: list[str],
    subject: str,
    seen_quickly: bool,
) -> None:
    """With its object and exit code 3; `--quick` does not see changed bytes."""
    await damage(installation)

    report = await installation.report("check", code=3)
    lines = (await installation.corral("check")).stdout.splitlines()
    quick = await installation.report("check", "--quick", code=3 if seen_quickly else 0)

    problems = report["problems"]
    assert [each["kind"] for each in problems] == kinds
    assert all(each["subject"].startswith(subject) for each in problems)
    expected = [f"{each['kind']}: {each['subject']}: {each['detail']}" for each in problems]
    assert lines[:-1] == expected
    assert quick["problems"] == (problems if seen_quickly else [])


async def test_blobs_without_a_row_are_counted(installation: Installation) -> None:
    """They are no damage: the sweeper deletes them once no call can be writing them."""
    orphan = installation.blobs / "ab" / ("ab" * 16)
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"x")
    assert (await installation.report("check"))["unreferenced"] == 0

    long_ago = datetime(2020, 1, 1, tzinfo=UTC).timestamp()
    os.utime(orphan, (long_ago, long_ago))
    assert (await installation.report("check"))["unreferenced"] == 1


async def test_nothing_to_check_is_an_error(tmp_path: Path) -> None:
    """In one line; no database is created."""
    installation = Installation(ControlSettings(data_dir=tmp_path / "data"))

    result = await installation.corral("check")

    assert str(result.exception).startswith("there is no database")
    assert not installation.settings.data_dir.exists()


async def test_the_database_is_not_changed(tmp_path: Path) -> None:
    """Not a byte, also with rows in the write-ahead log of a killed service."""
    installation = await Installation.make(tmp_path, None)
    file = tmp_path / "control" / "control.sqlite3"
    with closing(sqlite3.connect(file)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM files").fetchall()
        async with installation.run() as client:
            await client.create(b"12345")
        before = file.read_bytes()

        report = await installation.report("check")

        assert (report["blobs"], file.read_bytes()) == (1, before)


async def test_damaged_pages_of_sqlite_are_found(tmp_path: Path) -> None:
    """A page in the middle of the file is overwritten."""
    installation = await Installation.make(tmp_path, None)
    file = tmp_path / "control" / "control.sqlite3"
    with closing(sqlite3.connect(file)) as connection:
        ((root,),) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'ix_files_expires_at'"
        )
    with file.open("r+b") as raw:
        raw.seek((root - 1) * 4096)
        raw.write(b"\xff" * 4096)

    report = await installation.report("check", code=3)

    assert {each["kind"] for each in report["problems"]} == {"database"}
