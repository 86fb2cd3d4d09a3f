"""The engine that saves or restores a snapshot, and the errors if there is none."""

import os
import time
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import pytest
from corral.inference.v1 import engine_service_pb2 as pb

from inference_svc.engine.request import DropCachedPrefixes, FileCommand, project_archive
from inference_svc.model_pool.loader import find_digest
from inference_svc.models.file_identity import FileStamp
from inference_svc.models.known_digests import KnownDigests
from inference_svc.models.placement import LoadPolicy
from inference_svc.rpc.snapshots import SnapshotService
from inference_svc.snapshots.disk_prefix_cache import DiskPrefixCache
from inference_svc.snapshots.snapshot import Snapshot
from inference_svc.snapshots.store import FolderLimits, FolderUsage, SnapshotStore, new_snapshot_id
from svc_kit.errors import (
    DomainError,
    EngineRestarting,
    ModelNotLoaded,
    SnapshotIncompatible,
    StateNotFound,
    StorageFailed,
)
from tests.support.pooled import FakeEngine, PoolHarness, make_entry
from tests.support.snapshots import FINGERPRINT, make_snapshot

SAVE = pb.SaveSnapshotRequest(request_id="r")
RESTORE = pb.RestoreSnapshotRequest(snapshot_id="s")
MakeService = Callable[[PoolHarness], SnapshotService]
OTHER_MODEL = SnapshotIncompatible(snapshot="s", aspect="model", expected="d1", found="d2")


class FakeSnapshots:
    """Returns or raises the same result for each command; a dropped object counts as one file."""

    def __init__(self, result: Snapshot | DomainError) -> None:
        self.use = FolderUsage(0, 0)
        self.dropped: list[str] = []
        self.on_dropped: Callable[[], object] = lambda: None
        self._result = result

    async def run(self, command: FileCommand) -> object:
        if isinstance(command, DropCachedPrefixes):
            self.dropped += command.owners
            self.on_dropped()
            return len(command.owners)
        if isinstance(self._result, DomainError):
            raise self._result
        return self._result


@pytest.fixture
def folder(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(FolderLimits(tmp_path, 10**6, 9))


@pytest.fixture
def archive(tmp_path: Path) -> DiskPrefixCache:
    return DiskPrefixCache(FolderLimits(tmp_path / "archive", 10**6, 9, max_age_s=60.0))


@pytest.fixture
def make_service(folder: SnapshotStore, archive: DiskPrefixCache) -> MakeService:
    """Builds the service for the models of a harness and the empty stores."""
    return lambda harness: SnapshotService(harness.pool, folder, archive)


async def load_models(results: Mapping[str, Snapshot | DomainError]) -> PoolHarness:
    """Models a, b and c; those in `results` are loaded and have a digest."""
    harness = PoolHarness(*(make_entry(name, 2) for name in "abc"))
    await harness.start()
    for name, result in results.items():
        await harness.pool.load(harness[name], wait=True)
        get_engine(harness, name).snapshots = FakeSnapshots(result)
        harness[name].digest = "d"
        harness[name].digest_computed.set()
    return harness


def get_engine(harness: PoolHarness, name: str) -> FakeEngine:
    return harness.loader.alive(name)[-1]


def get_snapshots(harness: PoolHarness, name: str) -> FakeSnapshots:
    """The snapshot commands of a loaded model."""
    return cast(FakeSnapshots, get_engine(harness, name).snapshots)


def make_sequence_snapshot() -> Snapshot:
    return make_snapshot(tokens=array("i", [5, 6, 7, 8]))


async def test_a_snapshot_is_saved_by_the_engine_that_has_the_sequence(
    make_service: MakeService,
) -> None:
    """An engine without the sequence, and one that is still loading, are skipped."""
    not_found = StateNotFound(request="r", index=0)
    harness = await load_models({"a": not_found, "b": make_sequence_snapshot()})
    harness.loader.loads_immediately = False
    await harness.pool.load(harness["c"], wait=False)

    assert (await make_service(harness).save(SAVE)).snapshot.model == "m"


async def test_a_model_that_is_being_loaded_has_no_snapshots(make_service: MakeService) -> None:
    """Its digest is not known until it is loaded."""
    harness = PoolHarness(make_entry("a", policy=LoadPolicy.MANUAL))
    await harness.start(loads_immediately=False)
    await harness.pool.load(harness["a"], wait=False)
    service = make_service(harness)

    with pytest.raises(StateNotFound):
        await service.save(SAVE)
    with pytest.raises(ModelNotLoaded):
        await service.restore(RESTORE)


async def test_an_engine_that_is_down_may_have_the_model_of_a_snapshot(
    make_service: MakeService,
) -> None:
    """The error is EngineRestarting, unless another engine restores the snapshot."""
    harness = await load_models({"a": OTHER_MODEL, "b": OTHER_MODEL, "c": make_sequence_snapshot()})
    service = make_service(harness)
    get_engine(harness, "a").crash()

    assert (await service.restore(RESTORE)).snapshot.model == "m"
    get_engine(harness, "c").crash()
    with pytest.raises(EngineRestarting):
        await service.restore(RESTORE)
    for name in "ac":
        get_engine(harness, name).recover()
    get_engine(harness, "c").snapshots = FakeSnapshots(OTHER_MODEL)
    with pytest.raises(SnapshotIncompatible):
        await service.restore(RESTORE)


async def test_files_are_dropped_although_no_model_is_loaded(
    make_service: MakeService, folder: SnapshotStore, archive: DiskPrefixCache
) -> None:
    """Named snapshots, and the files of stored objects and of the stateless requests of projects;
    others are not dropped."""
    names = [new_snapshot_id() for _ in range(6)]
    for name in names[:2]:
        folder.save(make_snapshot(name), bytearray(40))
    owners = ("thread_1", "thread_2", project_archive("red"), project_archive("blue"))
    for name, kept_for in zip(names[2:], owners, strict=True):
        archive.save(make_snapshot(name, kept_for=kept_for), bytearray(40), ())
    request = pb.DropSnapshotsRequest(
        snapshot_ids=[names[0], "x"], object_ids=["thread_1", "x"], projects=["red", "x"]
    )

    assert (await make_service(PoolHarness()).drop(request)).num_dropped == 3
    remaining = {each.kept_for for each in archive.find_compatible(FINGERPRINT)}
    assert (folder.ids(), remaining) == ([names[1]], {"thread_2", project_archive("blue")})
    assert (await make_service(PoolHarness()).drop(request)).num_dropped == 0


async def test_prefixes_of_projects_expire(
    make_service: MakeService, archive: DiskPrefixCache, tmp_path: Path
) -> None:
    """Those that were not used for longer than the limit; those of stored objects stay."""
    names = [new_snapshot_id() for _ in range(3)]
    owners = (project_archive("red"), project_archive("red"), "thread_1")
    for name, kept_for in zip(names, owners, strict=True):
        archive.save(make_snapshot(name, kept_for=kept_for), bytearray(40), ())
    for name, age_s in zip(names, (61, 30, 61), strict=True):
        used_at = time.time() - age_s
        os.utime(tmp_path / "archive" / f"{name}.snapshot", (used_at, used_at))
    await make_service(PoolHarness()).delete_expired()

    assert archive.usage.num_files == 2
    found = archive.find_compatible(FINGERPRINT)
    assert sorted(each.snapshot_id for each in found) == sorted(names[1:])


async def test_every_engine_has_the_folder_usage_after_a_drop(
    make_service: MakeService, folder: SnapshotStore
) -> None:
    """Engines share the folder, and gauges may read the usage of any of them."""
    name = new_snapshot_id()
    folder.save(make_snapshot(name), bytearray(40))
    harness = await load_models({"a": make_sequence_snapshot(), "b": make_sequence_snapshot()})
    engine_snapshots = [get_snapshots(harness, model) for model in "ab"]
    for snapshots in engine_snapshots:
        snapshots.use = folder.usage
    await make_service(harness).drop(pb.DropSnapshotsRequest(snapshot_ids=[name]))

    assert [snapshots.use.num_files for snapshots in engine_snapshots] == [0, 0]


async def test_every_engine_drops_the_prefixes_of_a_stored_object(
    make_service: MakeService,
) -> None:
    """Also if another engine is down, which is an error after the others have dropped theirs."""
    harness = await load_models({"a": make_sequence_snapshot(), "b": make_sequence_snapshot()})
    service = make_service(harness)
    engine_snapshots = [get_snapshots(harness, model) for model in "ab"]
    request = pb.DropSnapshotsRequest(object_ids=["thread_1", ""], projects=["red"])

    assert (await service.drop(request)).num_dropped == 4
    get_engine(harness, "a").crash()
    with pytest.raises(EngineRestarting):
        await service.drop(request)
    names = ["thread_1", project_archive("red")]
    assert [snapshots.dropped for snapshots in engine_snapshots] == [names, names * 2]


async def test_what_an_engine_writes_while_it_is_unloaded_is_dropped_too(
    make_service: MakeService, archive: DiskPrefixCache
) -> None:
    """It is no longer among the engines that are told."""
    harness = await load_models({"a": make_sequence_snapshot()})
    written = make_snapshot(new_snapshot_id(), kept_for="thread_1")
    get_snapshots(harness, "a").on_dropped = lambda: archive.save(written, bytearray(40), ())

    await make_service(harness).drop(pb.DropSnapshotsRequest(object_ids=["thread_1"]))

    assert archive.snapshot_ids() == frozenset()


async def test_a_model_without_a_digest_has_no_snapshots(
    make_service: MakeService, tmp_path: Path
) -> None:
    """Saving fails only if no other model has the sequence."""
    harness = await load_models({"a": make_sequence_snapshot(), "b": make_sequence_snapshot()})
    service, missing = make_service(harness), FileStamp(Path("/nowhere.gguf"), 1, 1, 1)
    for name in "ab":
        harness[name].digest = ""
        harness[name].digest_computed.clear()
        harness[name].file = make_entry(name, file={"stamps": (missing,)}).file
        await find_digest(harness[name], KnownDigests(tmp_path / "digests"))
    with pytest.raises(StorageFailed, match="the model 'a'"):
        await service.save(SAVE)
    harness["b"].digest = "d"

    assert (await service.save(SAVE)).snapshot.model == "m"
