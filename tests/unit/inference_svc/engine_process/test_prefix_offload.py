"""Prefixes of stored objects that memory has no room for, on a fake engine and a real folder."""

from array import array
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.events import CacheSource, Started, TierLoad
from inference_svc.engine.fake import FakeBackend
from inference_svc.engine.request import DropCachedPrefixes, SequenceRequest, StoredObjectRef
from inference_svc.engine_client.messages import SnapshotDone
from inference_svc.engine_process.prefix_offload import OffloadDone, PrefixOffloader
from inference_svc.engine_process.snapshot_io import ServedEngine
from inference_svc.snapshots.disk_prefix_cache import DiskPrefixCache
from inference_svc.snapshots.store import FolderLimits
from tests.support.sequences import EngineBench, a_request
from tests.support.snapshots import FINGERPRINT

LIMITS = NativeLimits(64, 4, 1, 512, 300)
THREAD = [65 + i % 20 for i in range(100)]
OTHERS = [[97 + (i + shift) % 20 for i in range(100)] for shift in range(4)]
ROOM = 900
"""Bytes of memory: two states of a hundred tokens, four bytes each."""


class Office:
    """A desk in front of an engine with one slot, and room for two prefixes in memory."""

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int = 10**6,
        max_files: int = 9,
        room: int = ROOM,
        slot_tokens: int = LIMITS.slot_tokens,
    ) -> None:
        self.bench = EngineBench(FakeBackend(LIMITS), saved_bytes=room)
        self.news: SimpleQueue[OffloadDone] = SimpleQueue()
        served = ServedEngine("m", self.bench.engine, FINGERPRINT, slot_tokens)
        archive = DiskPrefixCache(FolderLimits(folder, max_bytes, max_files))
        self.desk = PrefixOffloader(served, archive, self.news.put)
        self._ids = iter(range(1000))

    def request(self, prompt: list[int], kept_for: str = "", **changes: Any) -> SequenceRequest:
        """A request, part of an object where one is named."""
        keep_for = StoredObjectRef(kept_for, FINGERPRINT.model) if kept_for else None
        fields = {"keep_for": keep_for, "max_tokens": 4, "ignore_eos": True, **changes}
        return a_request(next(self._ids), prompt, **fields)

    def ask(self, prompt: list[int], kept_for: str = "", **changes: Any) -> Started:
        """How a request began; it has ended since."""
        request = self.request(prompt, kept_for, **changes)
        if self.desk.holds(request):
            while request not in (results := list(self.desk.hear(self.news.get(timeout=10)))):
                pass
            assert results == [request]
        self.bench.submit(request)
        self.bench.run()
        (started,) = (
            event
            for event in self.bench.events
            if isinstance(event, Started) and event.sequence_id == request.sequence_id
        )
        return started

    def drop(self, *object_ids: str) -> object:
        """The answer to a command, which comes after all that was begun before."""
        self.desk.drop(DropCachedPrefixes(1, object_ids))
        while True:
            for result in self.desk.hear(self.news.get(timeout=10)):
                if isinstance(result, SnapshotDone):
                    return result.outcome

    @property
    def tier(self) -> TierLoad:
        """What is told of the archive, which has not been told before."""
        load = self.desk.news()
        assert load is not None
        assert self.desk.news() is None
        return load.tier

    def evict(self) -> None:
        """Have others take the slot and the memory, and the disk be done with what that evicts."""
        for prompt in OTHERS:
            self.ask(prompt)
        self.drop("nobody")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the archive is."""
    return tmp_path / "archive"


@pytest.fixture
def office(folder: Path) -> Office:
    """An office whose memory has already evicted a thread."""
    office = Office(folder)
    assert office.ask(THREAD, "thread_1").cached_tokens == 0
    office.evict()
    return office


def files(folder: Path) -> list[Path]:
    """What is archived."""
    return sorted(folder.glob("*.snapshot"))


def going_on(more: int = 20) -> list[int]:
    """The thread's next prompt."""
    return [*THREAD, *range(200, 200 + more)]


def test_what_memory_evicts_comes_back_from_disk(office: Office, folder: Path) -> None:
    """The next turn computes what is new in it."""
    (file,) = files(folder)
    assert file.stat().st_mode & 0o777 == 0o600

    started = office.ask(going_on(), "thread_1")

    assert (started.cached_tokens, started.source) == (100, CacheSource.DISK)


def test_another_engine_finds_what_this_one_left(office: Office, folder: Path) -> None:
    """A restart keeps the files."""
    started = Office(folder).ask(going_on(), "thread_1")

    assert (started.cached_tokens, started.source) == (100, CacheSource.DISK)


def test_another_object_goes_on_from_it_inside_the_project(office: Office) -> None:
    """A response that continues another one is found by its tokens; the other project's is not."""
    other = office.ask(going_on(), "thread_1", cache_key=b"another project")
    own = office.ask(going_on(), "response_2")

    assert (other.cached_tokens, own.cached_tokens) == (0, 100)


def test_only_what_is_part_of_an_object_reaches_the_disk(folder: Path) -> None:
    """What nobody stores is evicted for good, and does not look at the disk."""
    office = Office(folder)
    office.ask(THREAD)
    office.evict()

    assert not files(folder)
    assert office.ask(going_on()).cached_tokens == 0


def test_a_longer_turn_takes_the_place_of_the_shorter(office: Office, folder: Path) -> None:
    """A thread is one file, however many turns it has."""
    (before,) = files(folder)
    office.ask(going_on(80), "thread_1")
    office.evict()

    (after,) = files(folder)
    assert after != before
    assert office.ask(going_on(90), "thread_1").cached_tokens == 180


def test_what_a_file_serves_for_is_not_written_again(office: Office, folder: Path) -> None:
    """A turn of a few tokens is computed again sooner than its thread is written."""
    (before,) = files(folder)
    office.ask(going_on(), "thread_1")
    office.evict()

    assert files(folder) == [before]


@pytest.mark.parametrize("place", [60, -40])
def test_a_damaged_file_is_removed_and_the_prompt_computed(
    office: Office, folder: Path, place: int
) -> None:
    """Damage is seen in the description (when an engine starts) and in the cells."""
    (file,) = files(folder)
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)

    started = Office(folder).ask(going_on(), "thread_1")

    assert started.cached_tokens == 0
    assert not files(folder)


def test_a_file_that_is_gone_is_computed_again(office: Office, folder: Path) -> None:
    """Another engine may have needed its room."""
    files(folder)[0].unlink()

    assert office.ask(going_on(), "thread_1").cached_tokens == 0
    assert office.ask(going_on(), "thread_1").source is CacheSource.SLOT


def test_a_file_of_another_model_is_left_alone(office: Office, folder: Path) -> None:
    """Models share the folder."""
    other = Office(folder)
    keep_for = StoredObjectRef("thread_1", "another digest")

    assert other.ask(going_on(), keep_for=keep_for).cached_tokens == 0
    assert len(files(folder)) == 1


def test_nothing_of_a_dropped_object_stays(office: Office, folder: Path) -> None:
    """Its files go, and what slots, memory and running sequences have of it is not written any
    more."""
    office.ask(OTHERS[0], "thread_2")
    running = office.request(going_on(), "thread_1")
    office.bench.submit(running)
    office.bench.step()

    assert office.drop("thread_1", "thread_2", "unknown") == 1
    office.bench.run()
    office.evict()
    assert not files(folder)
    assert office.ask(going_on(), "thread_1").cached_tokens == 0


def test_a_file_that_is_read_while_its_object_is_dropped_is_not_written_again(
    office: Office, folder: Path
) -> None:
    """Neither what was read for the waiting request, nor what that one computes, is part of it."""
    waiting = office.request(going_on(80), "thread_1")
    assert office.desk.holds(waiting)

    office.desk.drop(DropCachedPrefixes(1, ("thread_1",)))
    news = [office.news.get(timeout=10) for _ in range(2)]
    results = [result for done in news for result in office.desk.hear(done)]
    (released,) = (result for result in results if isinstance(result, SequenceRequest))
    office.bench.submit(released)
    office.bench.run()
    office.evict()

    assert not files(folder)


def test_a_file_that_made_room_is_forgotten(folder: Path) -> None:
    """Its tokens are not searched, nor is it looked for."""
    office = Office(folder, max_files=1)
    for name, prompt in zip("ab", OTHERS[:2], strict=True):
        office.ask(prompt, name)
    office.ask(THREAD, "thread_1")
    office.evict()

    assert len(files(folder)) == 1
    assert not office.desk.holds(office.request([*OTHERS[0], 1], "a"))


def test_what_memory_can_never_hold_does_not_reach_the_disk(folder: Path) -> None:
    """Its way back leads through memory."""
    office = Office(folder, room=300)
    office.ask(THREAD, "thread_1")
    office.evict()

    assert not files(folder)


def test_a_file_that_memory_cannot_take_is_read_once(office: Office, folder: Path) -> None:
    """Memory may be smaller since a restart."""
    smaller = Office(folder, room=300)

    assert smaller.ask(going_on(), "thread_1").cached_tokens == 0
    smaller.ask(OTHERS[0])
    assert not smaller.desk.holds(smaller.request(going_on(), "thread_1"))


def test_a_file_of_more_tokens_than_a_slot_has_is_not_read(office: Office, folder: Path) -> None:
    """Slots may be smaller since a restart."""
    assert Office(folder, slot_tokens=100).ask(going_on(), "thread_1").cached_tokens == 0


def test_a_request_that_waits_for_its_file_can_be_taken_back(office: Office) -> None:
    """A cancel finds it in the engine; the file is read for whoever comes next."""
    request = office.request(going_on(), "thread_1")

    assert office.desk.holds(request)
    assert office.desk.release(request.sequence_id) is request
    assert office.desk.release(request.sequence_id) is None
    assert list(office.desk.hear(office.news.get(timeout=10))) == []
    assert office.ask(going_on(), "thread_1").source is CacheSource.DISK


def test_without_room_on_disk_nothing_waits(folder: Path) -> None:
    """0 bytes turn the archive off."""
    office = Office(folder, max_bytes=0)

    assert not office.desk.holds(office.request(THREAD, "thread_1"))
    office.ask(THREAD, "thread_1")
    office.evict()
    assert not files(folder)


def test_a_broken_disk_costs_time_and_nothing_else(tmp_path: Path) -> None:
    """Requests go on, and nothing is there to delete."""
    path = tmp_path / "a file"
    path.write_text("")
    office = Office(path)

    assert office.ask(THREAD, "thread_1").cached_tokens == 0
    office.evict()
    assert office.ask(going_on(), "thread_1").cached_tokens == 0
    assert office.drop("thread_1") == 0


def test_its_tokens_are_an_array(office: Office, folder: Path) -> None:
    """They cross from a file into the engine, which joins them with others."""
    (found,) = DiskPrefixCache(FolderLimits(folder, 10**6, 9)).usable(FINGERPRINT)

    assert found.origin.tokens[:100] == array("i", THREAD)
    assert found.kept_for == "thread_1"


def test_what_the_archive_was_good_for_is_told(office: Office, folder: Path) -> None:
    """Files and their bounds, and what happened since the engine started; a file that cannot be
    read is a miss too."""
    (file,) = files(folder)
    size = file.stat().st_size
    assert office.tier == TierLoad(1, size, 9, 10**6, 0, 1, 1, 0)

    office.ask(going_on(), "thread_1")
    office.ask([30, *THREAD], "thread_2")
    assert office.tier[4:] == (1, 2, 1, 0)
    office.evict()
    assert office.tier.num_written == 2
    file.unlink()
    office.ask(going_on(), "thread_1")

    left = files(folder)[0].stat().st_size
    assert office.tier == TierLoad(1, left, 9, 10**6, 1, 3, 2, 0)


def test_files_that_make_room_are_counted(folder: Path) -> None:
    """Whoever's they are."""
    office = Office(folder, max_files=1)
    office.ask(OTHERS[0], "a")
    office.ask(THREAD, "thread_1")
    office.evict()

    assert office.tier[-2:] == (2, 1)
