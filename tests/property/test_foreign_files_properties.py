"""Everything that deletes files, among files of others with names like ours."""

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from control_svc.backup.journal import NewBackup, prune, remove_files
from control_svc.backup.layout import BackupFolder, BlobEntry, Manifest, file_digest, write_lines
from control_svc.blobs.local import FolderBlobs
from control_svc.db.disk_reserve import DiskReserve
from inference_svc.adapter_sync.cache import AdapterCache
from inference_svc.adapter_sync.crash_marker import CrashMarker
from inference_svc.adapter_sync.state import DesiredState, frontend_id, save_state
from inference_svc.audit import AuditReporter
from inference_svc.media.encoded_cache import VectorFolder
from inference_svc.model_pool.added_models_file import (
    AddedModels,
    delete_unused_downloads,
    write_added_models,
    write_file_list,
)
from inference_svc.models.sources import DownloadFile
from inference_svc.snapshots.disk_prefix_cache import DiskPrefixCache
from inference_svc.snapshots.snapshot import Fingerprint
from inference_svc.snapshots.store import FolderLimits
from inference_svc.usage import UsageCounter, UsageReporter
from svc_kit.errors import StorageFailed
from svc_kit.lifecycle import StartupError
from svc_kit.local_files import atomic_file, lock_folder
from tests.support.examples import examples
from tests.support.snapshots import make_snapshot
from tests.support.trees import tree

HEX = "0123456789abcdef"
BLOCK = HEX * 3
KEY, DIGEST, SNAPSHOT, ADDED = HEX * 2, HEX * 4, f"snap_{HEX}01234567", "f" * 32
BACKUP, KILLED = "20200101T000000.000000Z", "20200102T000000.000000Z"
REPORT = str(UUID(int=7))
MEDIA = "corral-media-a1_b2_c3"
OWNER = "0f" * 16


class Place(NamedTuple):
    """A folder, the form of our names in it, and examples of them."""

    own: str
    examples: tuple[str, ...]


PLACES = {
    "blobs": Place("INSTALLATION", ("INSTALLATION",)),
    "blobs/01": Place("01[0-9a-f]{30}", (KEY,)),
    "blobs/incoming": Place("[0-9a-f]{32}", (KEY,)),
    "blobs/suspensions": Place(
        r"\d{8}T\d{6}\.\d{6}Z(\.[0-9a-f]{8}\.part)?", (BACKUP, f"{BACKUP}.01234567.part")
    ),
    "backups": Place("BACKUPS|backup.lock", ("BACKUPS", BACKUP)),
    "backups/blobs/01": Place(DIGEST, (DIGEST,)),
    "backups/blobs/incoming": Place(DIGEST, (DIGEST,)),
    f"backups/{BACKUP}": Place(
        "manifest.json|control.sqlite3|blobs.jsonl.gz|journal.jsonl",
        ("manifest.json", "control.sqlite3", "journal.jsonl"),
    ),
    f"backups/{KILLED}": Place("control.sqlite3|journal.jsonl", ("control.sqlite3",)),
    "snapshots": Place(
        r"snap_[0-9a-f]{24}\.(snapshot|unfinished)|key(\.unfinished)?",
        (f"{SNAPSHOT}.snapshot", f"{SNAPSHOT}.unfinished", "key.unfinished"),
    ),
    "snapshots/blocks": Place(
        r"[0-9a-f]{48}\.(block|unfinished)", (f"{BLOCK}.block", f"{BLOCK}.unfinished")
    ),
    "adapters": Place(
        r"[0-9a-f]{64}\.gguf|incoming-[0-9a-f]{16}", (f"{DIGEST}.gguf", f"incoming-{HEX}")
    ),
    "marks": Place(r"[0-9a-f]{64}\.(loading|suspect|blamed)", (f"{DIGEST}.loading",)),
    "usage": Place(r"[0-9a-f-]{36}\.jsonl", (f"{REPORT}.jsonl",)),
    "acts": Place(r"\d{20}-[0-9a-f-]{36}\.act", (f"{0:020}-{REPORT}.act",)),
    "media": Place(MEDIA, (MEDIA,)),
    f"media/{MEDIA}": Place(r"\d+\.f32|lock", ("0.f32", "lock")),
    "added": Place("[0-9a-f]{32}", (ADDED,)),
    f"added/{ADDED}": Place(
        r"m\.gguf(\.part|\.etag)?|files\.json(\.[0-9a-f]{8}\.part)?",
        ("m.gguf", "m.gguf.part", "files.json"),
    ),
    "data": Place(
        r"(state\.json|added_models\.json)(\.[0-9a-f]{8}\.part)?|frontend|up\.lock|reserve",
        ("state.json", "added_models.json", "frontend", "up.lock", "reserve"),
    ),
}
_CHARACTERS = st.sampled_from([*"0afgzAF.-_~ é", "\\", "\n", ".bak", ".part", ".gguf"])


@st.composite
def foreign_files(draw: st.DrawFn) -> tuple[str, str, str]:
    """A folder, a name in it that is almost ours, and what is there."""
    folder = draw(st.sampled_from(sorted(PLACES)))
    place = PLACES[folder]
    name = draw(st.sampled_from(place.examples))
    start = draw(st.integers(0, len(name)))
    end = draw(st.integers(start, min(start + 2, len(name))))
    changed = name[:start] + draw(_CHARACTERS | st.just("")) + name[end:]
    kind = draw(st.sampled_from(["file", "folder", "link"]))
    if re.fullmatch(place.own, changed) or changed in ("", ".", ".."):
        changed = f"{name}~"
    return folder, changed, kind


def put(root: Path, folder: str, name: str, kind: str) -> None:
    """Put something of others there, unless it is there."""
    path = root / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() or path.is_symlink():
        return
    if kind == "file":
        path.write_bytes(b"of somebody")
    elif kind == "link":
        path.symlink_to(root / "elsewhere" / "file")
    else:
        path.mkdir()
        (path / "file").write_bytes(b"of somebody")


def write_own(root: Path) -> list[Path]:
    """Write files of ours that the cleaners delete; return them."""
    for name in PLACES:
        (root / name).mkdir(parents=True, exist_ok=True)
    deleted = [
        *(root / "blobs" / name / KEY for name in ("01", "incoming")),
        *(root / "backups" / "blobs" / name / DIGEST for name in ("01", "incoming")),
        root / "snapshots" / f"{SNAPSHOT}.snapshot",
        root / "snapshots" / f"{SNAPSHOT}.unfinished",
        *(root / "snapshots" / "blocks" / f"{BLOCK}.{end}" for end in ("block", "unfinished")),
        root / "adapters" / f"{DIGEST}.gguf",
        root / "adapters" / f"incoming-{HEX}",
        root / "marks" / f"{DIGEST}.loading",
        root / "usage" / f"{REPORT}.jsonl",
        root / "acts" / f"{0:020}-{REPORT}.act",
        *(root / "media" / MEDIA / name for name in ("lock", "0.f32")),
        *(root / "added" / ADDED / name for name in ("m.gguf", "m.gguf.part")),
    ]
    for path in deleted:
        path.touch()
    write_file_list(root / "added" / ADDED, [DownloadFile(source="hf:o/r/m.gguf@c", name="m.gguf")])
    suspension = root / "blobs" / "suspensions" / BACKUP
    suspension.write_text(datetime(2020, 1, 1, tzinfo=UTC).isoformat())
    return [*deleted, suspension, *write_backups(BackupFolder(root / "backups"))]


def write_backups(folder: BackupFolder) -> list[Path]:
    """Write a backup with a blob, a newer one without, and what a killed one has left."""
    for name in (BACKUP, KILLED):
        (folder.root / name).rmdir()
    folder.claim(OWNER)
    for day, entries in ((1, [BlobEntry(KEY, 0, DIGEST)]), (3, [])):
        with NewBackup(folder, OWNER, datetime(2020, 1, day, tzinfo=UTC)) as new:
            new.new_file("control.sqlite3").touch()
            write_lines(new.new_file("blobs.jsonl.gz"), entries)
            files = ("control.sqlite3", "blobs.jsonl.gz")
            new.complete(
                Manifest(
                    backup_id=new.id,
                    mark=datetime(2020, 1, day, tzinfo=UTC),
                    release="1",
                    database="sqlite",
                    revision="0001",
                    installation=OWNER,
                    files={name: file_digest(new.path / name) for name in files},
                    num_blobs=len(entries),
                    num_bytes=0,
                    copied_bytes=0,
                )
            )
    with NewBackup(folder, OWNER, datetime(2020, 1, 2, tzinfo=UTC)) as killed:
        killed.new_file("control.sqlite3").touch()
        killed.begin_blob(DIGEST)
    (folder.root / "blobs" / "incoming" / DIGEST).touch()
    names = ("control.sqlite3", "blobs.jsonl.gz", "manifest.json")
    return [folder.root / KILLED / "control.sqlite3", *(folder.root / BACKUP / n for n in names)]


async def delete_blobs(root: Path) -> None:
    """Delete all blobs as the sweeper does if no row refers to them."""
    blobs = FolderBlobs(root / "blobs")
    await blobs.suspend_deletions(KILLED, 60)
    await blobs.suspend_deletions(KILLED, 0)
    assert not await blobs.is_deletion_suspended()
    pages = [page async for page in blobs.keys()]  # noqa: SIM118  # of a store
    await blobs.delete([stored.key for page in pages for stored in page])


async def prune_backups(root: Path) -> None:
    """Add no backup, and remove all but the newest."""
    folder = BackupFolder(root / "backups")
    folder.check_owner(OWNER)
    remove_files(folder, OWNER)
    prune(folder, OWNER, 1)


async def clean_snapshots(root: Path) -> None:
    """Evict and drop all."""
    cache = DiskPrefixCache(FolderLimits(root / "snapshots", 1 << 20, 1))
    snapshot = make_snapshot(f"snap_{'9' * 24}")
    cache.save(snapshot, bytearray(snapshot.state_bytes), ())
    cache.find_compatible(Fingerprint("a", "b", "c", "d"))
    cache.drop([""])


async def clean_adapters(root: Path) -> None:
    """Start, and evict for a file that fits alone."""

    async def chunks() -> AsyncIterator[bytes]:
        yield b"x"

    (root / "adapters" / f"{DIGEST}.gguf").write_bytes(b"y")
    cache = AdapterCache(root / "adapters", 1)
    cache.open()
    await cache.store("a", sha256(b"x").hexdigest(), 1, chunks(), ())
    marker = CrashMarker(root / "marks")
    marker.open()
    marker.end(DIGEST)


async def report_all(root: Path) -> None:
    async def send(_request: object) -> None:
        pass

    await UsageReporter(UsageCounter(root / "usage"), send).report()
    await AuditReporter(root / "acts", send).report()


async def clean_models(root: Path) -> None:
    """Delete vectors of killed processes and files of removed models."""
    VectorFolder(root / "media").close()
    delete_unused_downloads(root / "added", set())


async def write_data(root: Path) -> None:
    data = root / "data"
    for _ in range(2):
        with lock_folder(data, "up.lock", holder="`corral up`", remedy="stop it"):
            save_state(data / "state.json", DesiredState())
            write_added_models(data / "added_models.json", AddedModels({}, {}))
            frontend_id(data / "frontend")
            reserve = DiskReserve(data, 4096)
            reserve.check()
            reserve.fill()
            reserve.release()
            with atomic_file(data / "state.json") as file:
                file.write(b"{}")


async def clean_all(root: Path) -> None:
    await delete_blobs(root)
    await prune_backups(root)
    await clean_snapshots(root)
    await clean_adapters(root)
    await report_all(root)
    await clean_models(root)
    await write_data(root)


@example([(folder, place.examples[0] + "~", "file") for folder, place in PLACES.items()])
@example([("blobs/01", "notes.txt", "file"), ("backups/blobs/01", "photo.jpg", "file")])
@example([("adapters", "my.gguf", "file"), ("added", "mine", "folder"), ("acts", "x.act", "file")])
@example([("snapshots", "snap_x.snapshot", "file"), ("media", "corral-media-archive", "folder")])
@example([("usage", "notes.jsonl", "file"), ("blobs/suspensions", "notes", "file")])
@example([(f"backups/{KILLED}", "notes", "file"), (f"added/{ADDED}", "notes", "file")])
@given(foreign=st.lists(foreign_files(), min_size=1, max_size=30))
@settings(max_examples=examples(25), phases=(Phase.explicit, Phase.generate))
def test_cleaners_delete_what_is_ours_and_nothing_else(foreign: list[tuple[str, str, str]]) -> None:
    """Whatever others put into our folders is as it was after all of them ran."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "elsewhere").mkdir()
        (root / "elsewhere" / "file").write_bytes(b"of somebody")
        deleted = write_own(root)
        ours = tree(root)
        for each in foreign:
            put(root, *each)
        theirs = {name: what for name, what in tree(root).items() if name not in ours}

        asyncio.run(clean_all(root))

        after = tree(root)
        assert {name: after.get(name, "deleted") for name in theirs} == theirs
        assert after["elsewhere/file"] == b"of somebody"
        in_media = any(place == f"media/{MEDIA}" for place, _, _ in foreign)
        left = {path for path in deleted if path.exists()}
        assert {path for path in left if not (in_media and path.parent.name == MEDIA)} == set()


def start_lock(folder: Path) -> None:
    with lock_folder(folder, "up.lock", holder="`corral up`", remedy="stop it"):
        pass


def check_reserve(folder: Path) -> None:
    DiskReserve(folder).check()


def save_snapshot(folder: Path) -> None:
    asyncio.run(clean_snapshots(folder.parent))


@pytest.mark.parametrize(
    ("name", "start"),
    [("up.lock", start_lock), ("reserve", check_reserve), ("key", save_snapshot)],
    ids=["lock", "reserve", "key"],
)
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_a_file_that_only_has_our_name_is_not_overwritten(
    tmp_path: Path, name: str, start: Callable[[Path], None], kind: str
) -> None:
    """The start is refused with an error that names it."""
    put(tmp_path, "snapshots", name, kind)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_bytes(b"of somebody")
    before = tree(tmp_path)

    with pytest.raises((StartupError, StorageFailed)):
        start(tmp_path / "snapshots")

    assert tree(tmp_path) == before
