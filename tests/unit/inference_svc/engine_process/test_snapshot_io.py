"""Snapshot commands beside the step loop, with a fake engine and a real folder."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from inference_svc.engine.request import RestoreSnapshot, SaveSnapshot, SnapshotCommand
from inference_svc.engine_client.messages import SnapshotDone
from inference_svc.engine_process.file_thread import FileDone
from inference_svc.engine_process.snapshot_io import ServedEngine, SnapshotIO
from inference_svc.snapshots.file_format import write
from inference_svc.snapshots.snapshot import Snapshot
from inference_svc.snapshots.store import FolderLimits, SnapshotStore
from svc_kit.errors import (
    InternalError,
    SnapshotCorrupt,
    SnapshotIncompatible,
    SnapshotNotFound,
    SnapshotTooLarge,
    StateNotFound,
)
from tests.support.sequences import EngineBench, make_request
from tests.support.snapshots import FINGERPRINT, SNAPSHOT_ID

DIGEST = "d1"
PROMPT = range(65, 85)


class Bench:
    def __init__(
        self,
        folder: Path,
        *,
        saved_bytes: int = 10**6,
        write: Callable[..., None] = write,
        **served: Any,
    ) -> None:
        self.engine = EngineBench(saved_bytes=saved_bytes)
        self.store = SnapshotStore(FolderLimits(folder, 10**6, 9), write)
        self.done: SimpleQueue[FileDone] = SimpleQueue()
        fields = {"fingerprint": FINGERPRINT, "slot_tokens": 64, **served}
        served_engine = ServedEngine("m", self.engine.engine, **fields)
        self.results: list[SnapshotDone] = []
        self.io = SnapshotIO(served_engine, self.store, self.done.put, self.results.append)

    def execute(self, *commands: SnapshotCommand) -> list[SnapshotDone]:
        """Send commands together; returns their results."""
        self.results.clear()
        for command in commands:
            self.io.execute(command)
        while len(self.results) < len(commands):
            self.done.get().apply()
        return self.results.copy()

    def outcome(self, command: SnapshotCommand) -> object:
        (result,) = self.execute(command)
        return result.outcome

    def start_sequence(self) -> EngineBench:
        request = make_request(prompt=PROMPT, request_id="r", max_tokens=50, ignore_eos=True)
        self.engine.submit(request)
        for _ in range(4):
            self.engine.step()
        return self.engine

    def save(self) -> Snapshot:
        self.start_sequence()
        snapshot = self.outcome(SaveSnapshot(1, "r", 0, DIGEST))
        assert isinstance(snapshot, Snapshot)
        return snapshot


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A model and an empty folder."""
    return Bench(tmp_path / "snapshots")


def test_a_saved_snapshot_names_its_model(bench: Bench) -> None:
    """By name and digest; the result has the usage of the folder."""
    bench.start_sequence()
    (result,) = bench.execute(SaveSnapshot(5, "r", 0, DIGEST))
    snapshot = result.outcome

    assert isinstance(snapshot, Snapshot)
    assert (snapshot.model, snapshot.fingerprint.model) == ("m", DIGEST)
    assert (result.job_id, result.use) == (5, bench.store.usage)
    assert bench.store.usage.num_files == 1


def test_the_engine_continues_while_a_file_is_written(bench: Bench) -> None:
    """The snapshot has the cells of the moment of the command."""
    engine = bench.start_sequence()
    bench.io.execute(SaveSnapshot(1, "r", 0, DIGEST))
    num_output = len(engine.tokens(0))
    engine.run()
    assert bench.results == []
    bench.done.get().apply()

    (result,) = bench.results
    assert isinstance(result.outcome, Snapshot)
    assert len(result.outcome.origin.tokens) == len(PROMPT) + num_output


def test_commands_are_executed_in_order(bench: Bench) -> None:
    """One at a time; an error does not block the next command."""
    snapshot = bench.save()
    commands: list[SnapshotCommand] = [
        SaveSnapshot(1, "unknown", 0, DIGEST),
        RestoreSnapshot(2, snapshot.snapshot_id, DIGEST),
        SaveSnapshot(3, "r", 0, DIGEST),
        RestoreSnapshot(4, SNAPSHOT_ID, DIGEST),
    ]
    results = bench.execute(*commands)

    assert [result.job_id for result in results] == [1, 2, 3, 4]
    outcomes = [result.outcome for result in results]
    assert isinstance(outcomes[0], StateNotFound)
    assert outcomes[1] == snapshot
    assert isinstance(outcomes[2], Snapshot)
    assert isinstance(outcomes[3], SnapshotNotFound)
    assert results[3].use == bench.store.usage


def test_a_state_larger_than_the_memory_is_not_read(tmp_path: Path) -> None:
    """Even damaged cells are not noticed."""
    bench = Bench(tmp_path)
    snapshot = bench.save()
    restore = RestoreSnapshot(2, snapshot.snapshot_id, DIGEST)
    path = bench.store._path(snapshot.snapshot_id)
    *intact, last = path.read_bytes()
    path.write_bytes(bytes([*intact, last ^ 1]))
    limit = snapshot.state_bytes - 1
    error = Bench(tmp_path, saved_bytes=limit).outcome(restore)

    assert isinstance(error, SnapshotTooLarge)
    assert (error.limit_bytes, error.setting) == (limit, "engine.saved_prefix_mib")
    assert isinstance(bench.outcome(restore), SnapshotCorrupt)


def test_memory_allocated_during_the_read_is_an_error(bench: Bench) -> None:
    """A sequence was preempted while the file was read."""
    snapshot = bench.save()
    bench.io.execute(RestoreSnapshot(2, snapshot.snapshot_id, DIGEST))
    bench.engine.engine.prefix_cache.reserve(10**6)
    bench.done.get().apply()

    assert isinstance(bench.results[-1].outcome, SnapshotTooLarge)


def test_a_bug_on_the_file_thread_is_an_internal_error(tmp_path: Path) -> None:
    """The caller gets a result, and the next command is executed."""
    bugs = [ValueError()]

    def fail_once(*arguments: Any) -> None:
        if bugs:
            raise bugs.pop()
        write(*arguments)

    bench = Bench(tmp_path, write=fail_once)
    bench.start_sequence()

    assert isinstance(bench.outcome(SaveSnapshot(1, "r", 0, DIGEST)), InternalError)
    assert isinstance(bench.outcome(SaveSnapshot(2, "r", 0, DIGEST)), Snapshot)


@pytest.mark.parametrize(
    ("digest", "changes", "difference"),
    [
        ("d3", {}, ("model", "d3", "d1")),
        (DIGEST, {"slot_tokens": 20}, ("context", "20 tokens", "23 tokens or more")),
        (
            DIGEST,
            {"fingerprint": replace(FINGERPRINT, llama_cpp="9.9")},
            ("llama_cpp", "9.9", "1.2.3"),
        ),
    ],
    ids=["other model", "shorter context", "other build"],
)
def test_an_incompatible_snapshot_is_refused(
    bench: Bench, tmp_path: Path, digest: str, changes: dict[str, Any], difference: tuple[str, ...]
) -> None:
    """Before its cells are read."""
    snapshot = bench.save()
    other = Bench(tmp_path / "snapshots", **changes)
    error = other.outcome(RestoreSnapshot(2, snapshot.snapshot_id, digest))

    assert isinstance(error, SnapshotIncompatible)
    assert (error.aspect, error.expected, error.found) == difference
