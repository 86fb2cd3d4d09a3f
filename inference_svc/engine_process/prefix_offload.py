"""Offloads prefixes of stored objects to the disk prefix cache and loads them again, beside the
step loop.
"""

import logging
import time
from collections.abc import Callable, Collection, Container, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

from inference_svc.engine.events import DiskCacheLoad, TierLoad
from inference_svc.engine.kv_cache.allocator import MIN_SAVED_TOKENS
from inference_svc.engine.request import DropCachedPrefixes, SequenceRequest
from inference_svc.engine.saved_state import Origin, SavedPrefix
from inference_svc.engine_client.messages import SnapshotDone
from inference_svc.engine_process.snapshot_io import ServedEngine
from inference_svc.snapshots.disk_prefix_cache import DiskPrefixCache, SaveResult
from inference_svc.snapshots.snapshot import Fingerprint, Snapshot
from inference_svc.snapshots.store import FolderUse, new_snapshot_id
from svc_kit.errors import DomainError, InternalError


class DiskMeasurement(NamedTuple):
    """What the folder held at a moment of the monotonic clock."""

    at: float
    use: FolderUse


def measure_usage(archive: DiskPrefixCache) -> DiskMeasurement:
    """Look at the folder; on the thread that reads and writes it."""
    return DiskMeasurement(time.monotonic(), archive.use)


class DiskCacheCounts:
    """Counts on the step thread; `news` has the unreported part."""

    def __init__(self, archive: DiskPrefixCache) -> None:
        self.num_hits = self.num_misses = self.num_written = self.num_evicted = 0
        self.measured = measure_usage(archive)
        self._limits = archive.limits
        self._told: DiskCacheLoad | None = None

    def news(self) -> DiskCacheLoad | None:
        """The current counts; None if already reported."""
        load = DiskCacheLoad(self.measured.at, self._tier())
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


log = logging.getLogger(__name__)
T = TypeVar("T")
_MOST_UNWRITTEN_BYTES = 256 << 20
"""States on their way to the disk; what is evicted beyond that is lost."""


class OffloadDone(NamedTuple):
    """A notice from the offload thread that work is finished; pass it to `PrefixOffloader.hear` on
    the step thread.
    """

    take_in: Callable[[], None]
    measured: DiskMeasurement


class PrefixOffloader:
    """The archive of one model's engine. Everything but `tell` is called on the step thread; `tell`
    takes an `OffloadDone` there from the other one."""

    def __init__(
        self, served: ServedEngine, archive: DiskPrefixCache, tell: Callable[[OffloadDone], None]
    ) -> None:
        self._served = served
        self._engine = served.engine
        self._archive = archive
        self._tell = tell
        self._files = ThreadPoolExecutor(1, "archive")
        self._fingerprint: Fingerprint | None = None  # known with the first that is kept
        self._index: dict[str, SavedPrefix] | None = None  # without their cells
        self._held: dict[int, SequenceRequest] = {}
        self._readers: dict[str, list[int]] = {}
        self._unwritten_bytes = 0
        self._counts = DiskCacheCounts(archive)
        self._results: list[SequenceRequest | SnapshotDone] = []
        self._engine.archive_to(self._write)

    def holds(self, request: SequenceRequest) -> bool:
        """Whether a request waits for its prefix; `hear` returns it later."""
        if request.keep_for is None or not self._archive.is_on:
            return False
        if self._fingerprint is None:
            fingerprint = replace(self._served.fingerprint, model=request.keep_for.digest)
            self._fingerprint = fingerprint
            self._do(
                lambda: self._archive.usable(fingerprint), self._open, lambda _: self._open([])
            )
        if self._index is None:
            self._held[request.sequence_id] = request
            return True
        return self._reads_for(request, self._index)

    def release(self, sequence_id: int) -> SequenceRequest | None:
        """Stop holding a request, if it is held; it is to be submitted at once."""
        return self._held.pop(sequence_id, None)

    def drop(self, command: DropCachedPrefixes) -> None:
        """Delete the prefixes of objects; `hear` returns the result."""
        self._disown(command.object_ids)

        def dropped(count: int) -> None:
            self._disown(command.object_ids)  # again: a file may have been read meanwhile
            for known in list(self._known):
                if known.kept_for in command.object_ids:
                    self._forget(known.snapshot_id)
            self._results.append(SnapshotDone(command.job_id, count, None))

        def failed(error: DomainError) -> None:
            self._results.append(SnapshotDone(command.job_id, error, None))

        self._do(lambda: self._archive.drop(command.object_ids), dropped, failed)

    def _disown(self, object_ids: Container[str]) -> None:
        """Let nothing that waits, runs or is in memory be part of objects that are gone."""
        self._engine.forget_objects(object_ids)
        for request in list(self._held.values()):
            if request.keep_for is not None and request.keep_for.object_id in object_ids:
                self._held[request.sequence_id] = replace(request, keep_for=None)

    def hear(self, done: OffloadDone) -> Iterator[SequenceRequest | SnapshotDone]:
        """Take in what the other thread did; yields the requests that wait no longer, and
        answers."""
        self._counts.measured = done.measured
        done.take_in()
        results, self._results = self._results, []
        yield from results

    def news(self) -> DiskCacheLoad | None:
        """The state of the disk cache; None if already reported."""
        return self._counts.news()

    # --- finding and reading ----------------------------------------------------------------------

    @property
    def _known(self) -> Collection[SavedPrefix]:
        return self._index.values() if self._index is not None else ()

    def _open(self, found: list[Snapshot]) -> None:
        fitting = (one for one in found if one.num_computed < self._served.slot_tokens)
        self._index = {one.snapshot_id: _without_cells(one) for one in fitting}
        waiting, self._held = self._held, {}
        for request in waiting.values():
            if not self._reads_for(request, self._index):
                self._results.append(request)

    def _reads_for(self, request: SequenceRequest, index: dict[str, SavedPrefix]) -> bool:
        tokens = request.prompt + request.resumed
        shares = {
            name: known.shared(tokens, request.cache_key, limit=len(tokens) - 1)
            for name, known in index.items()
        }
        name = max(shares, key=shares.__getitem__, default="")
        nearer = self._engine.num_reusable_tokens(request)
        if not name or shares[name] - nearer < MIN_SAVED_TOKENS:
            self._counts.num_misses += nearer < MIN_SAVED_TOKENS
            return False
        self._held[request.sequence_id] = request
        readers = self._readers.setdefault(name, [])
        readers.append(request.sequence_id)
        if len(readers) == 1:
            read = partial(self._read, name)
            self._do(lambda: self._archive.state(name), read, lambda _: read(None))
        return True

    def _read(self, name: str, state: bytearray | None) -> None:
        known = self._index.get(name) if self._index is not None else None
        served = False
        if known is not None and state is not None:
            served = self._engine.restore(replace(known, state=state))
        if not served:
            self._forget(name)  # it is gone, or would be read in vain each time
        waiting = [self.release(sequence_id) for sequence_id in self._readers.pop(name)]
        requests = [request for request in waiting if request is not None]
        self._counts.num_hits += len(requests) if served else 0
        self._counts.num_misses += 0 if served else len(requests)
        self._results += requests

    def _forget(self, name: str) -> None:
        if self._index is not None:
            self._index.pop(name, None)

    # --- writing ----------------------------------------------------------------------------------

    def _write(self, prefix: SavedPrefix) -> None:
        """Archive what memory evicts, unless a file serves for it."""
        if self._fingerprint is None or self._index is None:
            return
        if any(_covers(known, prefix) for known in self._known):
            return
        size = len(prefix.state)
        if self._unwritten_bytes and self._unwritten_bytes + size > _MOST_UNWRITTEN_BYTES:
            log.info("a prefix is not archived: the disk is %d bytes behind", self._unwritten_bytes)
            return
        self._unwritten_bytes += size
        snapshot = self._described(prefix, self._fingerprint)
        mine = [known for known in self._known if known.kept_for == prefix.kept_for]
        replaced = [known.snapshot_id for known in mine if _covers(prefix, known)]

        def written(kept: SaveResult) -> None:
            self._unwritten_bytes -= size
            self._counts.num_written += 1
            self._counts.num_evicted += kept.num_evicted
            if self._index is not None:
                self._index[snapshot.snapshot_id] = _without_cells(snapshot)
                for name in [name for name in self._index if name not in kept.names]:
                    self._forget(name)  # its place was needed

        def failed(_: DomainError) -> None:
            self._unwritten_bytes -= size

        self._do(lambda: self._archive.save(snapshot, prefix.state, replaced), written, failed)

    def _described(self, prefix: SavedPrefix, fingerprint: Fingerprint) -> Snapshot:
        tokens = prefix.tokens
        return Snapshot(
            snapshot_id=new_snapshot_id(),
            created_at=time.time(),
            model=self._served.name,
            fingerprint=fingerprint,
            key=prefix.key,
            num_computed=len(tokens),
            whole=prefix.whole,
            origin=Origin("", 0, "", tokens, len(tokens), "", ()),
            state_bytes=len(prefix.state),
            kept_for=prefix.kept_for,
        )

    # --- the other thread -------------------------------------------------------------------------

    def _do(
        self,
        work: Callable[[], T],
        then: Callable[[T], None],
        failed: Callable[[DomainError], None],
    ) -> None:
        """Have the other thread work, and one of the two called here with what came of it."""

        def report(done: "Future[T]") -> None:
            self._tell(OffloadDone(_outcome(done, then, failed), measure_usage(self._archive)))

        self._files.submit(work).add_done_callback(report)


def _outcome(
    done: "Future[T]", then: Callable[[T], None], failed: Callable[[DomainError], None]
) -> Callable[[], None]:
    try:
        return partial(then, done.result())
    except DomainError as error:
        return partial(failed, error)
    except Exception:  # a defect here must not leave a request waiting for ever
        log.exception("the archive's files could not be handled")
        return partial(failed, InternalError(request_id="archive"))


def _without_cells(snapshot: Snapshot) -> SavedPrefix:
    return SavedPrefix(
        snapshot.key,
        snapshot.origin.tokens[: snapshot.num_computed],
        bytearray(),
        snapshot.whole,
        None,
        snapshot.snapshot_id,
        snapshot.kept_for,
    )


def _covers(one: SavedPrefix, other: SavedPrefix) -> bool:
    """Whether `one` gives what the other does, but for some tokens (a turn is often written another
    way when it has become part of a prompt)."""
    count = len(other.tokens)
    return count - one.shared(other.tokens, other.key, limit=count) < MIN_SAVED_TOKENS
