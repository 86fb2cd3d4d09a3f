"""Saves and restores snapshots. KV cells are copied between two decode calls; a second thread reads
and writes files.
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
from inference_svc.snapshots.store import FolderUsage, SnapshotStore, new_snapshot_id
from svc_kit.errors import DomainError, InternalError, SnapshotTooLarge, StateNotFound

log = logging.getLogger(__name__)


class ServedEngine(NamedTuple):
    """A model whose sequences can be saved. The model digest of `fingerprint` is not yet set."""

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
    """A finished operation of the file thread, for `SnapshotIO.handle`."""

    job_id: int
    outcome: "_LoadedSnapshot | Snapshot | DomainError"
    usage: FolderUsage


class SnapshotIO:
    """Executes commands in order, on the step thread. The file thread passes a `FileDone` to
    `post`, and the step thread passes it on to `handle`."""

    def __init__(
        self, served: ServedEngine, store: SnapshotStore, post: Callable[[FileDone], None]
    ) -> None:
        self._served = served
        self._store = store
        self._post = post
        self._file_thread = ThreadPoolExecutor(1, "snapshots")
        self._queue: deque[SnapshotCommand] = deque()
        self._is_busy = False

    def handle(self, message: SnapshotCommand | FileDone) -> Iterator[SnapshotDone]:
        """Start a command, or complete one; yields the results that are available."""
        if isinstance(message, FileDone):
            self._is_busy = False
            outcome = message.outcome
            if isinstance(outcome, _LoadedSnapshot):
                outcome = _restore(outcome)
            yield SnapshotDone(message.job_id, outcome, message.usage)
        else:
            self._queue.append(message)
        while self._queue and not self._is_busy:
            command = self._queue.popleft()
            try:
                work = self._prepare(command)
            except DomainError as error:
                yield SnapshotDone(command.job_id, error, None)
                continue
            self._is_busy = True
            self._file_thread.submit(work).add_done_callback(partial(self._report, command.job_id))

    def _prepare(self, command: SnapshotCommand) -> "Callable[[], _LoadedSnapshot | Snapshot]":
        """Return the work of the file thread. A save copies its KV cells now."""
        match command:
            case SaveSnapshot():
                snapshot, prefix = self._copy_cells(command)
                return lambda: self._write(snapshot, prefix.state)
            case RestoreSnapshot():
                max_bytes = self._served.engine.restore_bytes
                return lambda: self._read(command, max_bytes)

    def _copy_cells(self, command: SaveSnapshot) -> tuple[Snapshot, SavedPrefix]:
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

    # --- on the file thread -----------------------------------------------------------------------

    def _write(self, snapshot: Snapshot, state: bytearray) -> Snapshot:
        self._store.save(snapshot, state)
        return snapshot

    def _read(self, command: RestoreSnapshot, max_bytes: int) -> _LoadedSnapshot:
        with self._store.open(command.snapshot_id) as reader:
            snapshot, served = reader.snapshot, self._served
            fingerprint = _with_digest(served, command.digest)
            snapshot.check_compatible(
                RestoreTarget(fingerprint, served.engine.adapters, served.slot_tokens)
            )
            if snapshot.state_bytes > max_bytes:
                raise _too_large(snapshot, max_bytes)
            state = reader.read_state()
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
        except Exception:  # the caller must get a result even after a bug
            log.exception("snapshot job %d failed unexpectedly", job_id)
            outcome = InternalError(request_id=f"snapshot job {job_id}")
        self._post(FileDone(job_id, outcome, self._store.usage))


def _restore(loaded: _LoadedSnapshot) -> Snapshot | DomainError:
    """Restore the cells in the engine, whose free memory may have shrunk since the read began."""
    if loaded.engine.restore(loaded.prefix):
        return loaded.snapshot
    return _too_large(loaded.snapshot, loaded.engine.restore_bytes)


def _with_digest(served: ServedEngine, digest: str) -> Fingerprint:
    return replace(served.fingerprint, model=digest)


def _too_large(snapshot: Snapshot, limit_bytes: int) -> SnapshotTooLarge:
    return SnapshotTooLarge(
        snapshot=snapshot.snapshot_id,
        size_bytes=snapshot.state_bytes,
        limit_bytes=limit_bytes,
        setting="engine.saved_prefix_mib",
    )
