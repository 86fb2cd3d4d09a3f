"""What an engine says of the archive: how full its folder was when it was last looked at, and what
it was good for since the engine started."""

import time
from typing import NamedTuple

from inference_svc.engine.events import ArchiveLoad, TierLoad
from inference_svc.snapshots.archive import Archive
from inference_svc.snapshots.folder import FolderUse


class Measured(NamedTuple):
    """What the folder held at a moment of the monotonic clock."""

    at: float
    use: FolderUse


def measure(archive: Archive) -> Measured:
    """Look at the folder; on the thread that reads and writes it."""
    return Measured(time.monotonic(), archive.use)


class ArchiveCounts:
    """Counts on the step thread; `news` is what was not told yet."""

    def __init__(self, archive: Archive) -> None:
        self.num_hits = self.num_misses = self.num_written = self.num_evicted = 0
        self.measured = measure(archive)
        self._limits = archive.limits
        self._told: ArchiveLoad | None = None

    def news(self) -> ArchiveLoad | None:
        """The counts as they are; None where they were told before."""
        load = ArchiveLoad(self.measured.at, self._tier())
        if load == self._told:
            return None
        self._told = load
        return load

    def _tier(self) -> TierLoad:
        return TierLoad(
            self.measured.use.num_files,
            self.measured.use.num_bytes,
            self._limits.max_files,
            self._limits.max_bytes,
            self.num_hits,
            self.num_misses,
            self.num_written,
            self.num_evicted,
        )
