"""Which folders take backups, and whose files and backups stay in them."""

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from control_svc.backup.journal import NewBackup
from control_svc.backup.layout import BackupFolder
from svc_kit.lifecycle import StartupError
from tests.support.installation import Installation
from tests.support.small_disk import mount
from tests.support.trees import tree

OLD = "20200101T000000.000000Z"


@pytest.fixture
async def installation(tmp_path: Path) -> Installation:
    """An installation on SQLite with a file."""
    return await make(tmp_path / "one", b"12345")


async def make(folder: Path, *contents: bytes) -> Installation:
    installation = await Installation.make(folder, None)
    await add(installation, *contents)
    return installation


async def add(installation: Installation, *contents: bytes) -> None:
    async with installation.run() as client:
        for content in contents:
            await client.create(content)


@pytest.mark.parametrize(
    "target",
    [
        *("one", "one/control", "one/control/blobs", "one/control/blobs/ab", "one/backups"),
        *("other/../one/./new/folder", "link/backups", "other/blobs", ".", ".."),
    ],
)
async def test_a_folder_that_shares_files_with_the_data_is_refused(
    installation: Installation, tmp_path: Path, target: str
) -> None:
    """However its path is spelled; while services run, and before anything is written."""
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to("one")
    (tmp_path / "other" / "blobs").symlink_to(installation.blobs)
    async with installation.run():
        before = tree(tmp_path)
        result = await installation.corral("backup", tmp_path / target, "--keep", "1")
        after = tree(tmp_path)

    assert isinstance(result.exception, StartupError)
    assert "data" in str(result.exception)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert {name for name in changed if "control.sqlite3" not in name} == set()


@pytest.mark.parametrize("place", ["one", "one/control", "one/control/blobs"])
async def test_a_bind_mount_of_the_data_is_refused(
    installation: Installation, tmp_path: Path, place: str
) -> None:
    """Its path has nothing in common with that of the data."""
    before = tree(tmp_path / "one")
    with mount(tmp_path / "elsewhere", "--bind", str(tmp_path / place)) as elsewhere:
        result = await installation.corral("backup", elsewhere / "backups", "--keep", "1")

    assert "is inside the data folder" in str(result.exception)
    assert tree(tmp_path / "one") == before


def write_photo(folder: Path) -> None:
    """A file that looks like one of the data."""
    (folder / "blobs" / "ab").mkdir(parents=True)
    (folder / "blobs" / "ab" / "photo.jpg").write_bytes(b"x")


def write_lock(folder: Path) -> None:
    """A file of another program with the name of the lock."""
    (folder / "backup.lock").write_text("of somebody")


def write_incomplete(folder: Path) -> None:
    """What a killed backup of an earlier release, or somebody else, has left."""
    (folder / OLD).mkdir()
    (folder / OLD / "control.sqlite3").write_bytes(b"half")


def link_blobs(folder: Path) -> None:
    """A link to somebody's files."""
    (folder / "blobs").symlink_to(folder.parent)


@pytest.mark.parametrize("write", [write_photo, write_lock, write_incomplete, link_blobs])
async def test_a_folder_with_other_files_is_refused(
    installation: Installation, tmp_path: Path, write: Callable[[Path], None]
) -> None:
    """Unless it has backups of this installation; nothing is written."""
    folder = tmp_path / "photos"
    folder.mkdir()
    write(folder)
    before = tree(folder)

    result = await installation.corral("backup", folder, "--keep", "1")

    assert isinstance(result.exception, StartupError)
    assert str(folder) in str(result.exception)
    assert tree(folder) == before


async def test_a_new_volume_takes_backups(installation: Installation, tmp_path: Path) -> None:
    """Its file system has made a folder in it."""
    (tmp_path / "volume" / "lost+found").mkdir(parents=True)

    await installation.report("backup", tmp_path / "volume")


async def test_a_folder_of_another_installation_is_refused(
    installation: Installation, tmp_path: Path
) -> None:
    """With and without the marker, which earlier releases did not write."""
    folder, other = tmp_path / "backups", await make(tmp_path / "two", b"1")
    await installation.report("backup", folder)
    for _ in range(2):
        before = tree(folder)
        result = await other.corral("backup", folder, "--keep", "1")

        assert "has backups of another installation" in str(result.exception)
        assert tree(folder) == before
        (folder / "BACKUPS").unlink(missing_ok=True)


async def test_backups_of_an_earlier_release_are_continued(
    installation: Installation, tmp_path: Path
) -> None:
    """It wrote no marker; its backups are restored, and removed by their manifests. What is in
    none of these stays."""
    folder = tmp_path / "backups"
    first = await installation.report("backup", folder)
    (folder / "BACKUPS").unlink()
    write_incomplete(folder)
    (folder / "README").write_text("of the operator")
    await installation.report("restore", folder, "--verify")

    second = await installation.report("backup", folder, "--keep", "1")

    assert second["copied_bytes"] == 0
    assert not (folder / first["backup_id"]).exists()
    names = {"BACKUPS", "README", "backup.lock", "blobs", OLD, second["backup_id"]}
    assert {path.name for path in folder.iterdir()} == names
    assert (folder / "BACKUPS").read_text().strip() == first["installation"]


async def test_removed_backups_leave_files_of_others(
    installation: Installation, tmp_path: Path
) -> None:
    """Beside blobs, among them, in folders of backups and in those of killed ones."""
    folder = tmp_path / "backups"
    first = await installation.report("backup", folder)
    strangers = [
        folder / "photos" / "1.jpg",
        folder / "blobs" / "ab" / "photo.jpg",
        folder / "blobs" / "ab" / ("ab" * 32),
        folder / "blobs" / "incoming" / ("ab" * 32),
        folder / "blobs" / "notes",
        folder / first["backup_id"] / "notes",
        folder / OLD / "control.sqlite3",
        folder / OLD / "journal.jsonl",
    ]
    for path in strangers:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")

    second = await installation.report("backup", folder, "--keep", "1")

    assert [path for path in strangers if path.exists()] == strangers
    left = [path.name for path in (folder / first["backup_id"]).iterdir()]
    assert left == ["notes"]
    await installation.report("restore", folder, "--verify", "--backup", second["backup_id"])


@pytest.mark.parametrize("num_lines", [0, 1, 2, 3])
async def test_what_a_killed_backup_has_left_is_removed_by_the_next(
    installation: Installation, tmp_path: Path, num_lines: int
) -> None:
    """By its journal, whose last line may be cut off, and which may not name all of it yet."""
    folder = BackupFolder(tmp_path / "backups")
    kept = await installation.report("backup", folder.root)
    with NewBackup(folder, kept["installation"], datetime(2020, 1, 1, tzinfo=UTC)) as killed:
        killed.new_file("control.sqlite3").write_bytes(b"half")
        killed.begin_blob("ab" * 32)
    written = [folder.root / "blobs" / place / ("ab" * 32) for place in ("incoming", "ab")]
    for path in written:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    journal = killed.path / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:num_lines]) + b'["file", "con')

    await installation.report("backup", folder.root)

    is_named = [num_lines > 1, num_lines > 2]
    assert [not (killed.path / "control.sqlite3").exists(), not written[1].exists()] == is_named
    assert killed.path.exists() == (num_lines < 2)
    await installation.report("restore", folder.root, "--verify", "--backup", kept["backup_id"])


async def test_a_killed_removal_is_completed(installation: Installation, tmp_path: Path) -> None:
    """After the manifest has gone, the journal has the names."""
    folder = tmp_path / "backups"
    first = await installation.report("backup", folder)
    lines = [["installation", first["installation"]]]
    lines += [["file", name] for name in first["files"]]
    (folder / first["backup_id"] / "manifest.json").unlink()
    journal = folder / first["backup_id"] / "journal.jsonl"
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))

    await installation.report("backup", folder)

    assert not (folder / first["backup_id"]).exists()


async def test_backups_of_several_installations_are_told_apart(
    installation: Installation, tmp_path: Path
) -> None:
    """Where somebody has put them into one folder: `--keep` counts its own and keeps what others
    need, `--list` names the installations, and the newest is that of one alone."""
    folder, other = tmp_path / "backups", await make(tmp_path / "two", b"12345", b"two")
    first = await installation.report("backup", folder)
    theirs = await other.report("backup", tmp_path / "theirs")
    shutil.copytree(tmp_path / "theirs", folder, dirs_exist_ok=True)
    (folder / "BACKUPS").write_text(first["installation"])
    async with installation.run() as client:
        for file in (await client.page()).files:
            await client.delete(file.id)

    second = await installation.report("backup", folder, "--keep", "1")
    listed = await installation.corral("restore", folder, "--list")
    ambiguous = await installation.corral("restore", folder, "--verify")

    assert BackupFolder(folder).ids() == [theirs["backup_id"], second["backup_id"]]
    for manifest in (theirs, second):
        assert (
            f"{manifest['backup_id']} of installation {manifest['installation']}" in listed.stdout
        )
        await installation.report("restore", folder, "--verify", "--backup", manifest["backup_id"])
    assert "has backups of several installations: choose one" in str(ambiguous.exception)


async def test_nothing_is_removed_while_a_manifest_cannot_be_read(
    installation: Installation, tmp_path: Path
) -> None:
    """Its blobs are not known. The new backup is complete, and the damaged one is named."""
    folder = tmp_path / "backups"
    first = await installation.report("backup", folder)
    await add(installation, b"more")
    second = await installation.report("backup", folder)
    (folder / first["backup_id"] / "manifest.json").write_bytes(b"{")

    third = await installation.corral("backup", folder, "--keep", "1")
    listed = await installation.corral("restore", folder, "--list", "--json")

    assert "is complete, but no other was removed" in str(third.exception)
    assert first["backup_id"] in str(third.exception)
    assert first["backup_id"] in str(listed.exception)
    ids = [json.loads(line)["backup_id"] for line in listed.stdout.splitlines()]
    assert ids == BackupFolder(folder).ids()[1:]
    await installation.report("restore", folder, "--verify", "--backup", second["backup_id"])
