"""The disk prefix cache: prefixes of stored objects and, where the settings allow it, of the
stateless requests of projects.

Their cells are in blocks, so that what prefixes have in common is stored once. A file that is
damaged or has the format of another release is deleted; its prefix is recomputed.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

from inference_svc.engine.request import is_of_project
from inference_svc.engine.saved_state import CellLayout
from inference_svc.snapshots.snapshot import Fingerprint, Snapshot
from inference_svc.snapshots.store import FolderLimits, FolderUsage, SnapshotStore
from svc_kit.errors import (
    SnapshotCorrupt,
    SnapshotIncompatible,
    SnapshotNotFound,
    StorageFailed,
)

log = logging.getLogger(__name__)


class SaveResult(NamedTuple):
    """Result of a write: the snapshot ids now on disk, and the number of evicted files."""

    snapshot_ids: frozenset[str]
    num_evicted: int


class DiskPrefixCache:
    """The folder of cached prefixes. One thread at a time may use an instance; engines of other
    models may share the folder. All methods raise `StorageFailed`."""

    def __init__(
        self,
        limits: FolderLimits,
        cell_layout: Callable[[bytearray], CellLayout | None] = lambda _: None,
    ) -> None:
        """`cell_layout` says where a state has its cells; None if that is not known."""
        self.limits = limits
        self._cell_layout = cell_layout
        self._store = SnapshotStore(limits)

    @property
    def is_enabled(self) -> bool:
        """Whether the limits allow any file."""
        return self.limits.max_bytes > 0 and self.limits.max_files > 0

    @property
    def usage(self) -> FolderUsage:
        """Current usage by all engines and models."""
        return self._store.usage

    def find_compatible(self, fingerprint: Fingerprint) -> list[Snapshot]:
        """List the prefixes of a model, in no particular order, and delete expired ones."""
        self.delete_expired()
        return [each for each in self._snapshots() if each.fingerprint == fingerprint]

    def save(self, snapshot: Snapshot, state: bytearray, replaced: Collection[str]) -> SaveResult:
        """Write a prefix and delete the `replaced` ones. Raises `SnapshotTooLarge`."""
        num_evicted = self._store.save(snapshot, state, self._cell_layout(state))
        self._store.drop(replaced)
        return SaveResult(self.snapshot_ids(), num_evicted)

    def snapshot_ids(self) -> frozenset[str]:
        """The snapshot ids that are on disk."""
        return frozenset(self._store.ids())

    def mark_used(self, snapshot_id: str) -> None:
        """Count a use of a prefix that is in memory too: neither expiry nor eviction takes it."""
        self._store.mark_used(snapshot_id)

    def load_state(self, snapshot_id: str) -> bytearray | None:
        """Read the KV cells of a prefix; None if its file is missing or unusable. An unusable file
        is deleted."""
        try:
            with self._store.open(snapshot_id) as reader:
                return reader.read_state()
        except SnapshotNotFound:
            return None
        except (SnapshotCorrupt, SnapshotIncompatible) as problem:
            self._delete_unusable(snapshot_id, problem)
            return None

    def drop(self, owners: Collection[str]) -> int:
        """Delete the prefixes of owners; returns the number of deleted files. Raises
        `StorageFailed`, after deleting the others, if a file cannot be read: it may be one."""
        unreadable = list[StorageFailed]()
        ids = [each.snapshot_id for each in self._snapshots(unreadable) if each.kept_for in owners]
        num_deleted = self._store.drop(ids)
        if unreadable:
            raise unreadable[0]
        return num_deleted

    def delete_expired(self) -> int:
        """Delete the prefixes of projects that were not used for longer than the limit; returns
        the number of deleted files."""
        old = self._snapshots(used_before=time.time() - self.limits.max_age_s)
        return self._store.drop([each.snapshot_id for each in old if is_of_project(each.kept_for)])

    def _snapshots(
        self, unreadable: list[StorageFailed] | None = None, *, used_before: float = math.inf
    ) -> Iterator[Snapshot]:
        """All files but those that cannot be read now, whose errors are added to `unreadable`."""
        for snapshot_id in self._store.ids(used_before=used_before):
            try:
                with suppress(SnapshotNotFound):  # deleted by another engine meanwhile
                    yield self._store.describe(snapshot_id)
            except StorageFailed as problem:
                if unreadable is not None:
                    unreadable.append(problem)
            except (SnapshotCorrupt, SnapshotIncompatible) as problem:
                self._delete_unusable(snapshot_id, problem)

    def _delete_unusable(self, snapshot_id: str, problem: Exception) -> None:
        log.warning("deleting unusable prefix from the disk cache: %s", problem)
        self._store.drop([snapshot_id])
