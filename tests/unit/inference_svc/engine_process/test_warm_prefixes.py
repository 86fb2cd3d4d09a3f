"""When prefixes in slots and memory are written to disk, with a fake engine and a real folder."""

import logging
from pathlib import Path

import pytest

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.events import CacheSource
from inference_svc.engine.request import DropCachedPrefixes, project_archive
from inference_svc.engine_process.warm_prefixes import WarmPrefixes
from tests.support.offloading import OffloadBench, files

PROJECT = project_archive("red")
LONG = [65 + i % 50 for i in range(400)]
OTHER = [200 + i % 50 for i in range(300)]


class WarmBench(OffloadBench):
    """An engine with one slot of 1,000 tokens, whose model is known."""

    def __init__(self, folder: Path, saved_bytes: int = 10_000, window: int | None = None) -> None:
        limits = NativeLimits(64, 4, 1, 1000, 300)
        super().__init__(
            folder, saved_bytes=saved_bytes, slot_tokens=1000, limits=limits, window=window
        )
        self.warm = WarmPrefixes(self.engine.engine, self.offloader, self.engine.clock)
        self.run([30] * 10, PROJECT)

    def pass_time(self, seconds: float, *, is_busy: bool = False) -> None:
        """What the step loop does so much later."""
        self.engine.clock.now += seconds
        self.warm.archive_grown(is_busy=is_busy)

    def settle(self) -> None:
        """Let the engine have no work until it writes nothing more."""
        self.pass_time(0.0, is_busy=True)
        self.pass_time(0.0)
        while (wait_s := self.warm.wait_s) is not None:
            self.pass_time(wait_s)
            self.finish_writes()

    def finish_writes(self) -> None:
        self.drop("nobody")

    def archive_all(self) -> int:
        """Archive everything; returns the number of files."""
        counts: list[int] = []
        self.warm.archive_all(counts.append)
        while not counts:
            self.complete_next()
        return counts[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def test_a_prefix_is_written_when_the_engine_has_had_no_work_for_a_moment(folder: Path) -> None:
    """Not in the short gaps between the requests of a busy client."""
    bench = WarmBench(folder)
    assert bench.warm.wait_s is None
    for _ in range(5):
        bench.run(LONG, PROJECT)
        bench.pass_time(0.1, is_busy=True)
        bench.pass_time(0.1)
        bench.pass_time(0.4)
    bench.finish_writes()
    assert not files(folder)

    bench.settle()
    assert len(files(folder)) == 1
    started = WarmBench(folder).run([*LONG, 7, 8], PROJECT)
    assert (started.cached_tokens, started.source) == (400, CacheSource.DISK)


def test_a_running_sequence_is_written_beside_its_work(folder: Path) -> None:
    """At most every five seconds, and again only when 256 tokens of it are new."""
    bench = WarmBench(folder)
    bench.engine.submit(bench.request(LONG, PROJECT, max_tokens=500))
    while bench.engine.engine.running == [] or not bench.engine.engine.is_decoding:
        bench.engine.step()
    bench.pass_time(4.9, is_busy=True)
    bench.finish_writes()
    assert not files(folder)

    bench.pass_time(0.1, is_busy=True)
    bench.finish_writes()
    (first,) = files(folder)
    for _ in range(200):
        bench.engine.step()
    bench.pass_time(1000.0, is_busy=True)
    bench.finish_writes()
    assert files(folder) == [first]
    for _ in range(100):
        bench.engine.step()
    bench.pass_time(1000.0, is_busy=True)
    bench.finish_writes()

    (second,) = files(folder)
    assert second != first


def test_a_prefix_that_moved_to_memory_is_written_too(folder: Path) -> None:
    """Once, with the one that took its slot."""
    bench = WarmBench(folder)
    bench.run(LONG, PROJECT)
    bench.run(OTHER, "thread_1")
    bench.settle()
    assert len(files(folder)) == 2
    bench.settle()

    assert bench.tier.num_written == 2


def test_everything_is_written_before_the_engine_ends(folder: Path) -> None:
    """Also what has grown little, but nothing that a file has, that is not archived, or short and
    of a stateless request."""
    bench = WarmBench(folder)
    bench.run(LONG[:300], PROJECT)
    bench.run(OTHER, "thread_1")
    bench.run([250 + i % 20 for i in range(100)], "thread_2")
    bench.run([*LONG[:150], *OTHER[:20]], PROJECT)
    bench.run([55] * 300)
    assert bench.archive_all() == 3
    assert bench.archive_all() == 0

    bench.run(LONG, PROJECT)
    assert bench.archive_all() == 1
    assert len(files(folder)) == 3
    other = WarmBench(folder)
    assert other.run([*LONG, 1], PROJECT).cached_tokens == 400
    assert other.run([*OTHER, 1], "thread_1").cached_tokens == 300
    assert other.run([*OTHER, 1], PROJECT, cache_key=b"another project").cached_tokens == 0


def test_what_is_no_longer_on_disk_is_written_before_the_engine_ends(folder: Path) -> None:
    """Engines of other models evict its files; while it is used in memory nobody notices."""
    bench = WarmBench(folder)
    bench.run(LONG, PROJECT)
    assert bench.archive_all() == 1
    files(folder)[0].unlink()

    assert bench.archive_all() == 1
    assert WarmBench(folder).run([*LONG, 1], PROJECT).cached_tokens == 400


def test_an_engine_without_archived_requests_has_nothing_to_write(folder: Path) -> None:
    """Of `stored` requests without an object, and before the digest of the model is known."""
    bench = OffloadBench(folder)
    bench.run(LONG[:250])
    counts: list[int] = []
    WarmPrefixes(bench.engine.engine, bench.offloader, bench.engine.clock).archive_all(
        counts.append
    )
    bench.complete_next()

    assert counts == [0]
    assert not files(folder)


def test_a_dropped_project_is_not_written(folder: Path) -> None:
    """Neither its running sequences nor its prefixes in memory and in a slot, although they were
    about to be written."""
    bench = WarmBench(folder)
    bench.run(LONG[:300], PROJECT)
    bench.run([120 + i % 50 for i in range(300)], PROJECT)
    bench.run(OTHER, "thread_1")
    bench.engine.submit(bench.request([5] * 260, PROJECT))
    bench.engine.step()
    counts: list[int] = []
    bench.warm.archive_all(counts.append)
    bench.offloader.drop(DropCachedPrefixes(1, (PROJECT,)))
    while not counts:
        bench.complete_next()
    bench.engine.run()
    bench.settle()

    assert len(files(folder)) == 1
    assert WarmBench(folder).run([*OTHER, 1], "thread_1").cached_tokens == 300


def test_a_broken_disk_is_not_tried_again_until_the_prefix_has_grown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And the end of the engine is not delayed by it."""
    path = tmp_path / "a file"
    path.write_text("")
    bench = WarmBench(path)
    bench.run(LONG, PROJECT)
    bench.settle()
    bench.settle()
    assert num_attempts(caplog) == 1

    bench.run(OTHER, "thread_1")
    assert bench.archive_all() == 0
    assert num_attempts(caplog) == 2


def num_attempts(caplog: pytest.LogCaptureFixture) -> int:
    """Each failure of the disk is logged as an error; that a prefix is lost, once."""
    levels = [record.levelno for record in caplog.records]
    assert levels.count(logging.WARNING) == 1
    return levels.count(logging.ERROR)


def test_a_state_larger_than_the_memory_is_not_copied(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It could not be loaded again. The log says once which setting is too small."""
    bench = WarmBench(folder, saved_bytes=1000)
    bench.run(LONG, PROJECT)
    bench.settle()

    assert bench.archive_all() == 0
    assert not files(folder)
    (record,) = caplog.records
    assert "engine.saved_prefix_mib" in record.getMessage()


def test_conversations_with_the_same_beginning_store_it_once(folder: Path) -> None:
    """The second one copied it from the first. It stays until both are dropped."""
    bench, blocks, num_blocks = WarmBench(folder), folder / "blocks", list[int]()
    for number in (1, 2):
        bench.run([*LONG, *[number] * 300], f"thread_{number}")
        bench.settle()
        num_blocks.append(len(list(blocks.iterdir())))
    num_files = len(files(folder))
    bench.drop("thread_1")
    num_blocks.append(len(list(blocks.iterdir())))
    other = WarmBench(folder)
    cached_tokens = other.run([*LONG, *[2] * 300, 9], "thread_3").cached_tokens
    other.drop("thread_2")

    assert (num_files, num_blocks, cached_tokens) == (2, [2, 3, 2], 700)
    assert not list(blocks.iterdir())


def test_lengths_of_a_state_that_cannot_be_cut_do_not_pile_up(folder: Path) -> None:
    """The last ones stay, since the end of a turn may be written otherwise in the next one."""
    bench = WarmBench(folder, window=8)
    tokens = list(LONG[:100])
    for number in range(5):
        tokens += [number] * 70
        bench.run(tokens, "thread_1", max_tokens=1)
        bench.archive_all()

    assert len(files(folder)) == 3
    other = WarmBench(folder, window=8)
    assert other.run([*tokens[:381], 9, 9], "thread_1").cached_tokens == 380
    assert other.run([*tokens[:200], 9, 9], "thread_1").cached_tokens == 0
