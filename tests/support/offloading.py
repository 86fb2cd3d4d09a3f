"""The disk prefix cache of an engine with a fake backend and a real folder."""

from pathlib import Path
from queue import SimpleQueue
from typing import Any

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.events import Started, TierLoad
from inference_svc.engine.request import ArchiveOwner, DropCachedPrefixes, SequenceRequest
from inference_svc.engine.saved_state import CellArray, CellLayout
from inference_svc.engine_client.messages import SnapshotDone
from inference_svc.engine_process.file_thread import FileDone
from inference_svc.engine_process.prefix_offload import PrefixOffloader
from inference_svc.engine_process.snapshot_io import ServedEngine
from inference_svc.snapshots.disk_prefix_cache import DiskPrefixCache
from inference_svc.snapshots.store import FolderLimits
from tests.support.fake_backend import FakeBackend
from tests.support.sequences import EngineBench, make_request
from tests.support.snapshots import FINGERPRINT

LIMITS = NativeLimits(64, 4, 1, 512, 300)
OTHER_PROMPTS = [[97 + (i + shift) % 20 for i in range(100)] for shift in range(4)]
SAVED_BYTES = 900
"""Memory for two states of a hundred tokens with four bytes each."""


class OffloadBench:
    """An offloader for an engine with one slot, and memory for two prefixes. Requests are archived
    for an owner, a stored object or a project, if one is given."""

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int = 10**6,
        max_files: int = 9,
        saved_bytes: int = SAVED_BYTES,
        slot_tokens: int = LIMITS.slot_tokens,
        limits: NativeLimits = LIMITS,
        window: int | None = None,
        **options: Any,
    ) -> None:
        backend = FakeBackend(limits, window=window)
        self.engine = EngineBench(backend, saved_bytes=saved_bytes)
        self.finished: SimpleQueue[FileDone] = SimpleQueue()
        served = ServedEngine("m", self.engine.engine, FINGERPRINT, slot_tokens)
        cache = DiskPrefixCache(FolderLimits(folder, max_bytes, max_files), cell_layout)
        self.results: list[SnapshotDone] = []
        self.offloader = PrefixOffloader(
            served, cache, self.finished.put, self.results.append, **options
        )
        self._ids = iter(range(1000))

    def request(self, prompt: list[int], owner: str = "", **changes: Any) -> SequenceRequest:
        keep_for = ArchiveOwner(owner, FINGERPRINT.model) if owner else None
        fields = {"keep_for": keep_for, "max_tokens": 4, "ignore_eos": True, **changes}
        return make_request(next(self._ids), prompt, **fields)

    def complete_next(self) -> None:
        """Wait for the offload thread and complete its work."""
        self.finished.get(timeout=50).apply()

    def run(self, prompt: list[int], owner: str = "", **changes: Any) -> Started:
        """Run a request to its end; returns how it started."""
        request = self.request(prompt, owner, **changes)
        if self.offloader.defer(request):
            while not self.engine.engine.has_sequences:
                self.complete_next()
        else:
            self.engine.submit(request)
        self.engine.run()
        return self.engine.started(request.sequence_id)

    def drop(self, *owners: str) -> object:
        """The outcome of a command, which completes after all earlier work."""
        self.results.clear()
        self.offloader.drop(DropCachedPrefixes(1, owners))
        while not self.results:
            self.complete_next()
        return self.results[0].outcome

    @property
    def tier(self) -> TierLoad:
        """The changed load of the disk cache, which is reported only once."""
        load = self.offloader.changed_load()
        assert load is not None
        assert self.offloader.changed_load() is None
        return load.tier

    def evict(self) -> None:
        """Fill slot and memory with other prompts, and wait until the evicted prefixes are
        written."""
        for prompt in OTHER_PROMPTS:
            self.run(prompt)
        self.drop("nobody")


def cell_layout(state: bytearray) -> CellLayout:
    """That of the fake backend, which writes the start of a window as another cell."""
    return CellLayout(len(state) // 4, (CellArray(0, 1, 4),))


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.snapshot"))
