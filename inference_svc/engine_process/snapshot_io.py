"""Saves and restores snapshots. KV cells are copied between two decode calls; a second thread reads
and writes files.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from inference_svc.engine.engine import Engine
from inference_svc.engine.request import RestoreSnapshot, SaveSnapshot, SnapshotCommand
from inference_svc.engine.saved_state import Origin, SavedPrefix
from inference_svc.engine_client.messages import SnapshotDone
from inference_svc.engine_process.file_thread import FileDone, FileThread
from inference_svc.snapshots.snapshot import Fingerprint, RestoreTarget, Snapshot
from inference_svc.snapshots.store import SnapshotStore, new_snapshot_id
from svc_kit.errors import DomainError, SnapshotTooLarge, StateNotFound


class ServedEngine(NamedTuple):
    """A model whose sequences can be saved. The model digest of `fingerprint` is not yet set."""

    name: str
    engine: Engine
    fingerprint: Fingerprint
    slot_tokens: int

    def fingerprint_of(self, digest: str) -> Fingerprint:
        return replace(self.fingerprint, model=digest)

    def make_snapshot(
        self, prefix: SavedPrefix, origin: Origin, digest: str, *, kept_for: str = ""
    ) -> Snapshot:
        """Describe a prefix, under a new id."""
        return Snapshot(
            snapshot_id=new_snapshot_id(),
            created_at=time.time(),
            model=self.name,
            fingerprint=self.fingerprint_of(digest),
            key=prefix.key,
            num_computed=len(prefix.tokens),
            whole=prefix.min_tokens > 0,
            origin=origin,
            state_bytes=len(prefix.state),
            kept_for=kept_for,
        )

    def saved_prefix(self, snapshot: Snapshot, state: bytearray) -> SavedPrefix:
        """Return the prefix of a snapshot with these KV cells."""
        return snapshot.saved_prefix(state, self.engine.min_restored(snapshot.num_computed))


class _LoadedSnapshot(NamedTuple):
    snapshot: Snapshot
    state: bytearray


class SnapshotIO:
    """Executes commands in order, on the step thread; `emit` receives their results."""

    def __init__(
        self,
        served: ServedEngine,
        store: SnapshotStore,
        post: Callable[[FileDone], None],
        emit: Callable[[SnapshotDone], None],
    ) -> None:
        self._served = served
        self._store = store
        self._emit = emit
        self._thread = FileThread("snapshots", lambda: store.usage, post)
        self._queue: deque[SnapshotCommand] = deque()
        self._is_busy = False

    def execute(self, command: SnapshotCommand) -> None:
        """Execute a command, after the earlier ones."""
        self._queue.append(command)
        self._start_next()

    def _start_next(self) -> None:
        while self._queue and not self._is_busy:
            command = self._queue.popleft()
            try:
                work = self._prepare(command)
            except DomainError as error:
                self._emit(SnapshotDone(command.job_id, error, None))
                continue
            self._is_busy = True
            finish = partial(self._finish, command.job_id)
            self._thread.run(f"snapshot job {command.job_id}", work, finish, finish)

    def _finish(self, job_id: int, outcome: _LoadedSnapshot | Snapshot | DomainError) -> None:
        self._is_busy = False
        if isinstance(outcome, _LoadedSnapshot):
            outcome = self._restore(outcome)
        self._emit(SnapshotDone(job_id, outcome, self._thread.measured.usage))
        self._start_next()

    def _prepare(self, command: SnapshotCommand) -> Callable[[], _LoadedSnapshot | Snapshot]:
        """Return the work of the file thread. A save copies its KV cells now."""
        match command:
            case SaveSnapshot():
                snapshot, prefix = self._copy_cells(command)
                return lambda: self._write(snapshot, prefix.state)
            case RestoreSnapshot():
                max_bytes = self._served.engine.prefix_cache.capacity
                return lambda: self._read(command, max_bytes)

    def _copy_cells(self, command: SaveSnapshot) -> tuple[Snapshot, SavedPrefix]:
        prefix = self._served.engine.snapshot(command.request_id, command.choice)
        if prefix is None or prefix.origin is None:
            raise StateNotFound(request=command.request_id, index=command.choice)
        return self._served.make_snapshot(prefix, prefix.origin, command.digest), prefix

    def _restore(self, loaded: _LoadedSnapshot) -> Snapshot | DomainError:
        """Restore the cells in the engine, whose free memory may have shrunk since the read
        began."""
        cache, snapshot = self._served.engine.prefix_cache, loaded.snapshot
        if cache.put(self._served.saved_prefix(snapshot, loaded.state)):
            return snapshot
        return _too_large(snapshot, cache.capacity)

    # --- on the file thread -----------------------------------------------------------------------

    def _write(self, snapshot: Snapshot, state: bytearray) -> Snapshot:
        self._store.save(snapshot, state)
        return snapshot

    def _read(self, command: RestoreSnapshot, max_bytes: int) -> _LoadedSnapshot:
        with self._store.open(command.snapshot_id) as reader:
            snapshot, served = reader.snapshot, self._served
            fingerprint = served.fingerprint_of(command.digest)
            snapshot.check_compatible(
                RestoreTarget(fingerprint, served.engine.adapters, served.slot_tokens)
            )
            if snapshot.state_bytes > max_bytes:
                raise _too_large(snapshot, max_bytes)
            return _LoadedSnapshot(snapshot, reader.read_state())


def _too_large(snapshot: Snapshot, limit_bytes: int) -> SnapshotTooLarge:
    return SnapshotTooLarge(
        snapshot=snapshot.snapshot_id,
        size_bytes=snapshot.state_bytes,
        limit_bytes=limit_bytes,
        setting="engine.saved_prefix_mib",
    )
