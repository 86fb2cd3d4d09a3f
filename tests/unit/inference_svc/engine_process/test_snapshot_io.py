"""Snapshot commands beside the step loop, on fake engines and a real folder."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest

from inference_svc.engine.request import RestoreSnapshot, SaveSnapshot, SnapshotCommand
from inference_svc.engine_client.messages import SnapshotDone
from inference_svc.engine_process.snapshot_io import FileDone, ServedEngine, SnapshotIO
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
from tests.support.sequences import EngineBench, a_request
from tests.support.snapshots import AN_ID, FINGERPRINT

DIGEST = "d1"
PROMPT = range(65, 85)


class Office:
    """A desk whose other thread's news are taken in one by one."""

    def __init__(self, folder: Path, *, max_bytes: int = 10**6, saved_bytes: int = 10**6) -> None:
        self.bench = EngineBench(saved_bytes=saved_bytes)
        self.folder = SnapshotStore(FolderLimits(folder, max_bytes, 9))
        self.news: SimpleQueue[FileDone] = SimpleQueue()
        slot_tokens = self.bench.backend.limits.slot_tokens
        served = ServedEngine("m", self.bench.engine, FINGERPRINT, slot_tokens)
        self.desk = SnapshotIO(served, self.folder, self.news.put)

    def ask(self, *commands: SnapshotCommand) -> Iterator[SnapshotDone]:
        """The answers to commands that come together."""
        answers = [answer for command in commands for answer in self.desk.hear(command)]
        while len(answers) < len(commands):
            answers += self.desk.hear(self.news.get())
        return iter(answers)

    def outcome(self, command: SnapshotCommand) -> object:
        """The answer to one command."""
        (answer,) = self.ask(command)
        return answer.outcome

    def run_some(self) -> EngineBench:
        """Begin a sequence called "r"."""
        request = a_request(prompt=PROMPT, request_id="r", max_tokens=50, ignore_eos=True)
        self.bench.submit(request)
        for _ in range(4):
            self.bench.step()
        return self.bench

    def saved(self) -> Snapshot:
        """A snapshot of such a sequence."""
        self.run_some()
        snapshot = self.outcome(SaveSnapshot(1, "r", 0, DIGEST))
        assert isinstance(snapshot, Snapshot)
        return snapshot


@pytest.fixture
def office(tmp_path: Path) -> Office:
    """A model and an empty folder."""
    return Office(tmp_path / "snapshots")


def test_a_save_says_what_it_is_of(office: Office) -> None:
    """The model that has the sequence, by name and digest, and what the folder holds."""
    office.run_some()
    (answer,) = office.ask(SaveSnapshot(5, "r", 0, DIGEST))
    snapshot = answer.outcome

    assert isinstance(snapshot, Snapshot)
    assert (snapshot.model, snapshot.fingerprint.model) == ("m", DIGEST)
    assert (answer.job_id, answer.use) == (5, office.folder.use)
    assert office.folder.use.num_files == 1


def test_the_engine_goes_on_while_a_file_is_written(office: Office) -> None:
    """The cells are those of the moment, whatever is computed before the file is done."""
    bench = office.run_some()
    answers = list(office.desk.hear(SaveSnapshot(1, "r", 0, DIGEST)))
    said = len(bench.tokens(0))
    bench.run()
    (answer,) = office.desk.hear(office.news.get())

    assert answers == []
    assert isinstance(answer.outcome, Snapshot)
    assert len(answer.outcome.origin.tokens) == len(PROMPT) + said


def test_commands_are_served_in_order(office: Office) -> None:
    """One state at a time is on its way, and an error holds up nobody."""
    snapshot = office.saved()
    commands: list[SnapshotCommand] = [
        SaveSnapshot(1, "unknown", 0, DIGEST),
        RestoreSnapshot(2, snapshot.snapshot_id, DIGEST),
        SaveSnapshot(3, "r", 0, DIGEST),
        RestoreSnapshot(4, AN_ID, DIGEST),
    ]
    answers = list(office.ask(*commands))

    assert [answer.job_id for answer in answers] == [1, 2, 3, 4]
    outcomes = [answer.outcome for answer in answers]
    assert isinstance(outcomes[0], StateNotFound)
    assert outcomes[1] == snapshot
    assert isinstance(outcomes[2], Snapshot)
    assert isinstance(outcomes[3], SnapshotNotFound)
    assert answers[3].use == office.folder.use


def test_another_model_is_refused(office: Office) -> None:
    """By the digest."""
    snapshot = office.saved()
    error = office.outcome(RestoreSnapshot(2, snapshot.snapshot_id, "d3"))

    assert isinstance(error, SnapshotIncompatible)
    assert (error.aspect, error.expected, error.found) == ("model", "d3", "d1")


def test_a_state_larger_than_the_memory_is_not_read(tmp_path: Path) -> None:
    """The cells may even be damaged: nobody looks."""
    office = Office(tmp_path)
    snapshot = office.saved()
    path = office.folder._path(snapshot.snapshot_id)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    small = Office(tmp_path, saved_bytes=snapshot.state_bytes - 1)
    error = small.outcome(RestoreSnapshot(2, snapshot.snapshot_id, DIGEST))

    assert isinstance(error, SnapshotTooLarge)
    assert (error.limit_bytes, error.setting) == (
        snapshot.state_bytes - 1,
        "engine.saved_prefix_mib",
    )
    assert isinstance(
        office.outcome(RestoreSnapshot(2, snapshot.snapshot_id, DIGEST)), SnapshotCorrupt
    )


def test_room_that_is_taken_meanwhile_is_an_error(office: Office) -> None:
    """A sequence was preempted while the file was read."""
    snapshot = office.saved()
    list(office.desk.hear(RestoreSnapshot(2, snapshot.snapshot_id, DIGEST)))
    office.bench.engine._prefix_cache.reserve(10**6)
    (answer,) = office.desk.hear(office.news.get())

    assert isinstance(answer.outcome, SnapshotTooLarge)


def test_a_defect_on_the_other_thread_has_an_answer(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for ever, and the next command is served."""
    office.run_some()
    with monkeypatch.context() as patch:
        patch.setattr(office.folder, "save", None)
        assert isinstance(office.outcome(SaveSnapshot(1, "r", 0, DIGEST)), InternalError)

    assert isinstance(office.outcome(SaveSnapshot(2, "r", 0, DIGEST)), Snapshot)


def test_a_context_that_is_too_short_is_refused(office: Office) -> None:
    """Before its cells are read."""
    snapshot = office.saved()
    assert office.desk._served is not None
    office.desk._served = office.desk._served._replace(slot_tokens=snapshot.num_computed)
    error = office.outcome(RestoreSnapshot(1, snapshot.snapshot_id, DIGEST))

    assert isinstance(error, SnapshotIncompatible)
    assert error.aspect == "context"


def test_another_build_is_refused(office: Office) -> None:
    """The state's format is the version's own."""
    snapshot = office.saved()
    assert office.desk._served is not None
    fingerprint = replace(FINGERPRINT, llama_cpp="9.9")
    office.desk._served = office.desk._served._replace(fingerprint=fingerprint)
    error = office.outcome(RestoreSnapshot(1, snapshot.snapshot_id, DIGEST))

    assert isinstance(error, SnapshotIncompatible)
    assert (error.aspect, error.expected, error.found) == ("llama_cpp", "9.9", "1.2.3")
