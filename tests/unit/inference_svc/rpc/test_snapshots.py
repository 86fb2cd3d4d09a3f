"""Which engine a snapshot is saved or restored with, and what is said where none can be asked."""

from array import array
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from corral.inference.v1 import engine_service_pb2 as pb

from inference_svc.engine.request import DropCachedPrefixes, FileCommand
from inference_svc.model_pool.loader import compute_digest
from inference_svc.models.file_identity import FileStamp
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
    TooLong,
)
from tests.support.pooled import FakeEngine, PoolHarness, make_entry
from tests.support.snapshots import make_snapshot

SAVE = pb.SaveSnapshotRequest(request_id="r")
RESTORE = pb.RestoreSnapshotRequest(snapshot_id="s")
Over = Callable[[PoolHarness], SnapshotService]
OF_ANOTHER = SnapshotIncompatible(snapshot="s", aspect="model", expected="d1", found="d2")


class Desk:
    """Gives one answer to whatever is asked; of each object that is dropped it had one file."""

    def __init__(self, answer: Snapshot | DomainError) -> None:
        self.use = FolderUsage(0, 0)
        self.dropped: list[str] = []
        self._answer = answer

    async def run(self, command: FileCommand) -> object:
        """The answer."""
        if isinstance(command, DropCachedPrefixes):
            self.dropped += command.object_ids
            return len(command.object_ids)
        if isinstance(self._answer, DomainError):
            raise self._answer
        return self._answer


@pytest.fixture
def folder(tmp_path: Path) -> SnapshotStore:
    """An empty folder."""
    return SnapshotStore(FolderLimits(tmp_path, 10**6, 9))


@pytest.fixture
def archive(tmp_path: Path) -> DiskPrefixCache:
    """An empty one."""
    return DiskPrefixCache(FolderLimits(tmp_path / "archive", 10**6, 9))


@pytest.fixture
def over(folder: SnapshotStore, archive: DiskPrefixCache) -> Over:
    """Makes what is tested, over the folders and a server's engines."""
    return lambda harness: SnapshotService(harness.pool, folder, archive)


async def loaded(answers: Mapping[str, Snapshot | DomainError]) -> PoolHarness:
    """A server of models a, b and c; those with an answer are loaded and have a digest."""
    harness = PoolHarness(*(make_entry(name, 2) for name in "abc"))
    await harness.start()
    for name, answer in answers.items():
        await harness.pool.load(harness[name], wait=True)
        engine_of(harness, name).snapshots = Desk(answer)
        harness[name].digest = "d"
        harness[name].digest_computed.set()
    return harness


def engine_of(harness: PoolHarness, name: str) -> FakeEngine:
    """The engine of a loaded model."""
    return harness.loader.alive(name)[-1]


def a_sequence() -> Snapshot:
    """A snapshot as the engine describes it."""
    return make_snapshot(tokens=array("i", [5, 6, 7, 8]))


async def test_the_engine_that_has_the_sequence_saves_it(over: Over) -> None:
    """One that loads, and one that could not be loaded, have nothing to say."""
    nothing = StateNotFound(request="r", index=0)
    harness = await loaded({"a": nothing, "b": a_sequence()})
    harness.loader.loads_immediately = False
    await harness.pool.load(harness["c"], wait=False)

    assert (await over(harness).save(SAVE)).snapshot.model == "m"


async def test_a_model_that_is_being_loaded_is_not_asked(over: Over) -> None:
    """Its digest is not known before its load has come to an end, if ever."""
    harness = PoolHarness(make_entry("a", policy=LoadPolicy.MANUAL))
    await harness.start(loads_immediately=False)
    await harness.pool.load(harness["a"], wait=False)
    snapshots = over(harness)

    with pytest.raises(StateNotFound):
        await snapshots.save(SAVE)
    with pytest.raises(ModelNotLoaded):
        await snapshots.restore(RESTORE)


async def test_an_engine_that_is_down_may_be_the_one(over: Over) -> None:
    """Unless another one has it."""
    harness = await loaded({"a": OF_ANOTHER, "b": OF_ANOTHER, "c": a_sequence()})
    snapshots = over(harness)
    engine_of(harness, "a").crash()

    assert (await snapshots.restore(RESTORE)).snapshot.model == "m"
    engine_of(harness, "c").crash()
    with pytest.raises(EngineRestarting):
        await snapshots.restore(RESTORE)
    for name in "ac":
        engine_of(harness, name).recover()
    engine_of(harness, "c").snapshots = Desk(OF_ANOTHER)
    with pytest.raises(SnapshotIncompatible):
        await snapshots.restore(RESTORE)


async def test_files_are_dropped_with_no_model_loaded(
    over: Over, folder: SnapshotStore, archive: DiskPrefixCache
) -> None:
    """Those that are named, and those of objects that are gone; others stay."""
    names = [new_snapshot_id() for _ in range(4)]
    for name in names[:2]:
        folder.save(make_snapshot(name), bytearray(40))
    for name, kept_for in zip(names[2:], ("thread_1", "thread_2"), strict=True):
        archive.save(make_snapshot(name, kept_for=kept_for), bytearray(40), ())
    asked = pb.DropSnapshotsRequest(snapshot_ids=[names[0], "x"], object_ids=["thread_1", "x"])

    assert (await over(PoolHarness()).drop(asked)).num_dropped == 2
    assert (folder.ids(), archive.usage.num_files) == ([names[1]], 1)
    assert (await over(PoolHarness()).drop(asked)).num_dropped == 0


async def test_every_engine_hears_what_is_left_of_the_files(
    over: Over, folder: SnapshotStore
) -> None:
    """For the gauges: whichever of them is asked, they share one folder."""
    name = new_snapshot_id()
    folder.save(make_snapshot(name), bytearray(40))
    harness = await loaded({"a": a_sequence(), "b": a_sequence()})
    desks = [Desk(a_sequence()), Desk(a_sequence())]
    for model, desk in zip("ab", desks, strict=True):
        engine_of(harness, model).snapshots = desk
        desk.use = folder.usage
    await over(harness).drop(pb.DropSnapshotsRequest(snapshot_ids=[name]))

    assert [desk.use.num_files for desk in desks] == [0, 0]


async def test_every_engine_drops_what_it_has_of_an_object(over: Over) -> None:
    """One that is away does not keep the others from it, and the caller hears of it."""
    harness = await loaded({"a": a_sequence(), "b": a_sequence()})
    snapshots, desks = over(harness), []
    for name in "ab":
        desks.append(Desk(a_sequence()))
        engine_of(harness, name).snapshots = desks[-1]
    asked = pb.DropSnapshotsRequest(object_ids=["thread_1", ""])

    assert (await snapshots.drop(asked)).num_dropped == 2
    engine_of(harness, "a").crash()
    with pytest.raises(EngineRestarting):
        await snapshots.drop(asked)
    assert [desk.dropped for desk in desks] == [["thread_1"], ["thread_1"] * 2]


@pytest.mark.parametrize("field", ["snapshot_ids", "object_ids"])
async def test_no_more_are_dropped_at_once_than_a_step_can_bear(over: Over, field: str) -> None:
    """The list is bounded before any engine is asked."""
    with pytest.raises(TooLong) as failure:
        await over(PoolHarness()).drop(pb.DropSnapshotsRequest(**{field: ["s"] * 1001}))
    assert failure.value.field == field


async def test_a_model_without_a_digest_has_no_snapshots(over: Over) -> None:
    """It does not keep others from theirs, and nobody waits for it."""
    harness = await loaded({"a": a_sequence(), "b": a_sequence()})
    snapshots, gone = over(harness), FileStamp(Path("/nowhere.gguf"), 1, 1, 1)
    for name in "ab":
        harness[name].digest = ""
        harness[name].digest_computed.clear()
        harness[name].file = make_entry(name, file={"stamps": (gone,)}).file
        await compute_digest(harness[name])
    with pytest.raises(StorageFailed, match="the model 'a'"):
        await snapshots.save(SAVE)
    harness["b"].digest = "d"

    assert (await snapshots.save(SAVE)).snapshot.model == "m"
