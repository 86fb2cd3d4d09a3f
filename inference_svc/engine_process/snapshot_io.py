"""Saves and restores snapshots: cells are copied between two decode calls, files are written by
another thread.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from inference_svc.engine.engine import Engine
from inference_svc.engine.request import RestoreSnapshot, SaveSnapshot, SnapshotCommand
from inference_svc.engine.saved_state import SavedPrefix
from inference_svc.engine_client.messages import SnapshotDone
from inference_svc.snapshots.snapshot import Fingerprint, RestoreTarget, Snapshot
from inference_svc.snapshots.store import FolderUse, SnapshotStore, new_snapshot_id
from svc_kit.errors import DomainError, InternalError, SnapshotTooLarge, StateNotFound

log = logging.getLogger(__name__)


class ServedEngine(NamedTuple):
    """A model whose sequences may be saved; its fingerprint has no digest of the model yet."""

    name: str
    engine: Engine
    fingerprint: Fingerprint
    slot_tokens: int


class _LoadedSnapshot(NamedTuple):
    """The content of a file, and the request that restores it."""

    engine: Engine
    snapshot: Snapshot
    prefix: SavedPrefix


class FileDone(NamedTuple):
    """A finished operation of the file thread, for `SnapshotIO.hear`."""

    job_id: int
    outcome: "_LoadedSnapshot | Snapshot | DomainError"
    use: FolderUse


class SnapshotIO:
    """Serves commands in order. Everything but `tell` is called on the step thread; `tell` takes a
    `FileDone` there from the other one."""

    def __init__(
        self, served: ServedEngine, folder: SnapshotStore, tell: Callable[[FileDone], None]
    ) -> None:
        self._served = served
        self._folder = folder
        self._tell = tell
        self._files = ThreadPoolExecutor(1, "snapshots")
        self._line: deque[SnapshotCommand] = deque()
        self._is_busy = False

    def hear(self, news: SnapshotCommand | FileDone) -> Iterator[SnapshotDone]:
        """Take a command, or what became of one; yields what can be answered now."""
        if isinstance(news, FileDone):
            self._is_busy = False
            outcome = news.outcome
            if isinstance(outcome, _LoadedSnapshot):
                outcome = _restore(outcome)
            yield SnapshotDone(news.job_id, outcome, news.use)
        else:
            self._line.append(news)
        while self._line and not self._is_busy:
            command = self._line.popleft()
            try:
                work = self._prepare(command)
            except DomainError as error:
                yield SnapshotDone(command.job_id, error, None)
                continue
            self._is_busy = True
            self._files.submit(work).add_done_callback(partial(self._report, command.job_id))

    def _prepare(self, command: SnapshotCommand) -> "Callable[[], _LoadedSnapshot | Snapshot]":
        """What the other thread has to do. A save copies its cells now."""
        match command:
            case SaveSnapshot():
                snapshot, prefix = self._copied(command)
                return lambda: self._write(snapshot, prefix.state)
            case RestoreSnapshot():
                room = self._served.engine.restore_bytes
                return lambda: self._read(command, room)

    def _copied(self, command: SaveSnapshot) -> tuple[Snapshot, SavedPrefix]:
        served = self._served
        prefix = served.engine.snapshot(command.request_id, command.choice)
        if prefix is None or prefix.origin is None:
            raise StateNotFound(request=command.request_id, index=command.choice)
        snapshot = Snapshot(
            snapshot_id=new_snapshot_id(),
            created_at=time.time(),
            model=served.name,
            fingerprint=_with_digest(served, command.digest),
            key=prefix.key,
            num_computed=len(prefix.tokens),
            whole=prefix.whole,
            origin=prefix.origin,
            state_bytes=len(prefix.state),
        )
        return snapshot, prefix

    # --- on the other thread ----------------------------------------------------------------------

    def _write(self, snapshot: Snapshot, state: bytearray) -> Snapshot:
        self._folder.save(snapshot, state)
        return snapshot

    def _read(self, command: RestoreSnapshot, room: int) -> _LoadedSnapshot:
        with self._folder.open(command.snapshot_id) as reader:
            snapshot, served = reader.snapshot, self._served
            fingerprint = _with_digest(served, command.digest)
            snapshot.check(RestoreTarget(fingerprint, served.engine.adapters, served.slot_tokens))
            if snapshot.state_bytes > room:
                raise _too_large(snapshot, room)
            state = reader.state()
        prefix = SavedPrefix(
            snapshot.key,
            snapshot.origin.tokens[: snapshot.num_computed],
            state,
            snapshot.whole,
            snapshot.origin,
            snapshot.snapshot_id,
        )
        return _LoadedSnapshot(served.engine, snapshot, prefix)

    def _report(self, job_id: int, work: "Future[_LoadedSnapshot | Snapshot]") -> None:
        outcome: _LoadedSnapshot | Snapshot | DomainError
        try:
            outcome = work.result()
        except DomainError as error:
            outcome = error
        except Exception:  # a defect here must not leave the caller waiting for ever
            log.exception("a snapshot's file could not be handled")
            outcome = InternalError(request_id=f"snapshot job {job_id}")
        self._tell(FileDone(job_id, outcome, self._folder.use))


def _restore(read: _LoadedSnapshot) -> Snapshot | DomainError:
    """Give the cells to their engine, whose room may have shrunk meanwhile."""
    if read.engine.restore(read.prefix):
        return read.snapshot
    return _too_large(read.snapshot, read.engine.restore_bytes)


def _with_digest(served: ServedEngine, digest: str) -> Fingerprint:
    return replace(served.fingerprint, model=digest)


def _too_large(snapshot: Snapshot, room: int) -> SnapshotTooLarge:
    return SnapshotTooLarge(
        snapshot=snapshot.snapshot_id,
        size_bytes=snapshot.state_bytes,
        limit_bytes=room,
        setting="engine.saved_prefix_mib",
    )
