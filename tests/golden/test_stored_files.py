"""Files of a data directory have the names that release 0.1 gave them."""

from pathlib import Path
from typing import Final

import pytest

from control_svc.blobs.local import FolderBlobs
from inference_svc.adapter_sync.cache import AdapterCache
from inference_svc.adapter_sync.crash_marker import CrashMarker
from inference_svc.adapter_sync.state import frontend_id
from inference_svc.model_pool.added_models_file import (
    AddedModel,
    AddedModels,
    read_added_models,
    write_added_models,
)
from inference_svc.models.sources import DownloadFile
from inference_svc.snapshots.store import FolderLimits, SnapshotStore
from svc_kit.lifecycle import StartupError
from tests.golden.test_stored_formats import SECRET, SNAPSHOT, golden

KEY: Final = "ab" * 16
SNAPSHOT_ID: Final = f"snap_{'0' * 24}"


def write(path: Path, content: bytes = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


async def test_stored_bytes_are_in_the_folder_of_the_first_digits_of_their_key(
    tmp_path: Path,
) -> None:
    """The blob key in the database leads to the file."""
    write(tmp_path / "ab" / KEY, b"abc")

    blobs = FolderBlobs(tmp_path)
    blobs.prepare()

    assert [chunk async for chunk in blobs.read(KEY, 1, 2)] == [b"bc"]
    pages = [page async for page in blobs.keys()]  # noqa: SIM118
    assert KEY in [stored.key for page in pages for stored in page]


def test_a_folder_of_stored_bytes_belongs_to_the_installation_that_it_names(
    tmp_path: Path,
) -> None:
    write(tmp_path / "INSTALLATION", b"one\n")

    blobs = FolderBlobs(tmp_path)
    blobs.prepare()
    blobs.claim("one")

    with pytest.raises(StartupError):
        blobs.claim("another")


def test_cached_adapters_are_found_by_their_digest(tmp_path: Path) -> None:
    """They are not downloaded again; unfinished downloads are removed."""
    cached = write(tmp_path / "d1.gguf")
    unfinished = write(tmp_path / "incoming-0123456789abcdef")

    cache = AdapterCache(tmp_path, 1)
    cache.open()

    assert cache.find("d1") == cached
    assert not unfinished.exists()


def test_crash_markers_of_adapters_are_files(tmp_path: Path) -> None:
    """An upgraded service does not load an adapter that crashed the engine."""
    digests = [letter * 64 for letter in "abc"]
    write(tmp_path / f"{digests[0]}.blamed")
    write(tmp_path / f"{digests[1]}.loading")
    write(tmp_path / f"{digests[2]}.loading")
    write(tmp_path / f"{digests[2]}.suspect")

    marker = CrashMarker(tmp_path)
    marker.open()

    assert [marker.is_blamed(digest) for digest in digests] == [True, False, True]
    assert (tmp_path / f"{digests[1]}.suspect").exists()


def test_the_frontend_id_is_stored_in_a_file(tmp_path: Path) -> None:
    """The control service identifies the frontend by it."""
    assert frontend_id(write(tmp_path / "frontend", b"frontend_1\n")) == "frontend_1"


def test_snapshots_are_found_by_their_id_and_verified_with_the_key_beside_them(
    tmp_path: Path,
) -> None:
    """The file is as 0.1 wrote it."""
    write(tmp_path / "key", SECRET)
    write(tmp_path / f"{SNAPSHOT_ID}.snapshot", bytes.fromhex(golden("formats")["stored snapshot"]))

    store = SnapshotStore(FolderLimits(tmp_path, 2**20, 10))

    assert store.ids() == [SNAPSHOT_ID]
    with store.open(SNAPSHOT_ID) as reader:
        assert reader.snapshot.origin == SNAPSHOT.origin
        assert reader.read_state() == b"\1\2\3\4"


def test_the_cells_of_a_snapshot_are_in_blocks_named_by_their_digests(tmp_path: Path) -> None:
    """The files are as the release after 0.2 wrote them, the first with blocks."""
    stored = golden("formats")
    write(tmp_path / "key", SECRET)
    write(tmp_path / f"{SNAPSHOT_ID}.snapshot", bytes.fromhex(stored["snapshot with a block"]))
    block = write(tmp_path / "blocks" / stored["name of its block"], bytes(range(256)))

    store = SnapshotStore(FolderLimits(tmp_path, 2**20, 10))

    with store.open(SNAPSHOT_ID) as reader:
        assert reader.read_state() == bytes([1, *range(256), 2, 3])
    assert block.exists()


def test_models_that_operators_added_are_in_a_file(tmp_path: Path) -> None:
    """It is read, and written, as the release wrote it that began it."""
    path = Path(__file__).with_name("added_models.json")
    part = DownloadFile(
        source="hf:o/r/m.gguf@c0ffee", name="m.gguf", sha256="ab" * 32, size_bytes=7
    )
    pulled = AddedModel(name="m", source="hf:o/r:Q4_K_M", projector="auto", files=(part,))
    own = AddedModel(
        name="own", source="/m/own.gguf", projector="none", pinned=True, idle_ttl_s=60.0
    )

    added = read_added_models(path)
    write_added_models(tmp_path / "copy.json", added)

    assert added == AddedModels({"m": pulled, "own": own}, {"hf.co/o/r:Q4_K_M": "m"})
    assert (tmp_path / "copy.json").read_text() == path.read_text()


@pytest.mark.parametrize("content", ["", "{}", '{"version": 2, "models": [], "aliases": {}}'])
def test_a_file_of_added_models_that_cannot_be_read_stops_the_start(
    tmp_path: Path, content: str
) -> None:
    """Nothing that operators added is lost silently."""
    with pytest.raises(StartupError, match="restore it from a backup"):
        read_added_models(write(tmp_path / "added.json", content.encode()))
