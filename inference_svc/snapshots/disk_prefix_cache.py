"""The disk prefix cache: prefixes of stored objects that had no room in memory.

A file that is damaged, or of another release or model, is dropped: the prefix is computed again.
"""

import logging
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

from inference_svc.snapshots.snapshot import Fingerprint, Snapshot
from inference_svc.snapshots.store import FolderLimits, FolderUse, SnapshotStore
from svc_kit.errors import SnapshotCorrupt, SnapshotIncompatible, SnapshotNotFound

log = logging.getLogger(__name__)


class SaveResult(NamedTuple):
    """After a prefix was written: the names of all files that there are, and how many made room."""

    names: frozenset[str]
    num_evicted: int


class DiskPrefixCache:
    """The folder, used by one thread at a time; engines of other models may use it beside it. All
    methods raise `StorageFailed`."""

    def __init__(self, limits: FolderLimits) -> None:
        self.limits = limits
        self._folder = SnapshotStore(limits)

    @property
    def is_on(self) -> bool:
        """Whether anything is kept at all."""
        return self.limits.max_bytes > 0 and self.limits.max_files > 0

    @property
    def use(self) -> FolderUse:
        """What there is now, of all engines and models."""
        return self._folder.use

    def usable(self, fingerprint: Fingerprint) -> list[Snapshot]:
        """What there is for a model, in no order."""
        return [found for found in self._described() if found.fingerprint == fingerprint]

    def save(self, snapshot: Snapshot, state: bytearray, replaced: Collection[str]) -> SaveResult:
        """Write a prefix, in the place of those that it continues. Raises `SnapshotTooLarge`."""
        num_evicted = self._folder.save(snapshot, state)
        self._folder.drop(replaced)
        return SaveResult(frozenset(self._folder.ids()), num_evicted)

    def state(self, snapshot_id: str) -> bytearray | None:
        """The cells of a prefix; None where it is gone or cannot be used, and then it is gone."""
        try:
            with self._folder.open(snapshot_id) as reader:
                return reader.state()
        except SnapshotNotFound:
            return None
        except (SnapshotCorrupt, SnapshotIncompatible) as problem:
            self._remove(snapshot_id, problem)
            return None

    def drop(self, object_ids: Collection[str]) -> int:
        """Delete what is kept for stored objects; returns how many files there were."""
        found = [one.snapshot_id for one in self._described() if one.kept_for in object_ids]
        return self._folder.drop(found)

    def _described(self) -> Iterator[Snapshot]:
        for snapshot_id in self._folder.ids():
            try:
                with suppress(SnapshotNotFound):  # another engine has just dropped it
                    yield self._folder.describe(snapshot_id)
            except (SnapshotCorrupt, SnapshotIncompatible) as problem:
                self._remove(snapshot_id, problem)

    def _remove(self, snapshot_id: str, problem: Exception) -> None:
        log.warning("an archived prefix is removed: %s", problem)
        self._folder.drop([snapshot_id])
