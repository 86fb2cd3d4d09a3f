"""Offloads evicted prefixes of stored objects to the disk prefix cache, and loads them for later
requests, on a thread beside the step loop.
"""

import logging
from collections.abc import Callable, Collection, Container
from dataclasses import replace
from functools import partial
from typing import TypeVar

from inference_svc.engine.events import DiskCacheLoad, TierLoad
from inference_svc.engine.kv_cache.allocator import MIN_SAVED_TOKENS
from inference_svc.engine.request import DropCachedPrefixes, SequenceRequest
from inference_svc.engine.saved_state import Origin, SavedPrefix
from inference_svc.engine_client.messages import SnapshotDone
from inference_svc.engine_process.file_thread import FileDone, FileThread
from inference_svc.engine_process.snapshot_io import ServedEngine
from inference_svc.snapshots.disk_prefix_cache import DiskPrefixCache, SaveResult
from inference_svc.snapshots.snapshot import Fingerprint, Snapshot
from svc_kit.errors import DomainError

log = logging.getLogger(__name__)
T = TypeVar("T")
_MAX_UNWRITTEN_BYTES = 256 << 20
"""Limit of the states queued for the disk; prefixes evicted beyond it are lost."""


class PrefixOffloader:
    """Connects the engine of a model to the disk prefix cache; `emit` receives the results of
    commands. Its methods are called on the step thread."""

    def __init__(
        self,
        served: ServedEngine,
        cache: DiskPrefixCache,
        post: Callable[[FileDone], None],
        emit: Callable[[SnapshotDone], None],
    ) -> None:
        self._served = served
        self._engine = served.engine
        self._cache = cache
        self._emit = emit
        self._thread = FileThread("disk-prefix-cache", lambda: cache.usage, post)
        self._fingerprint: Fingerprint | None = None  # set by the first request of a stored object
        self._index: dict[str, SavedPrefix] | None = None  # without KV cells; None until listed
        self._deferred: dict[int, SequenceRequest] = {}
        self._readers: dict[str, list[int]] = {}
        self._unwritten_bytes = 0
        self._num_hits = self._num_misses = self._num_written = self._num_evicted = 0
        self._reported: DiskCacheLoad | None = None
        self._engine.prefix_cache.on_evicted = self._write

    def defer(self, request: SequenceRequest) -> bool:
        """Whether a request has to wait for its prefix; if so, it is submitted later."""
        if request.keep_for is None or not self._cache.is_enabled:
            return False
        if self._fingerprint is None:
            self._fingerprint = fingerprint = self._served.fingerprint_of(request.keep_for.digest)
            self._run(
                lambda: self._cache.find_compatible(fingerprint),
                self._set_index,
                lambda _: self._set_index([]),
            )
        if self._index is None:
            self._deferred[request.sequence_id] = request
            return True
        return self._start_read(request, self._index)

    def release(self, sequence_id: int) -> SequenceRequest | None:
        """Stop deferring a request and return it; None if it is not deferred."""
        return self._deferred.pop(sequence_id, None)

    def drop(self, command: DropCachedPrefixes) -> None:
        """Delete the files of the objects, and then emit `SnapshotDone` with their number."""
        self._detach_objects(command.object_ids)

        def dropped(count: int) -> None:
            self._detach_objects(command.object_ids)  # again: a read may have finished meanwhile
            for prefix in list(self._indexed):
                if prefix.kept_for in command.object_ids:
                    self._remove_from_index(prefix.snapshot_id)
            self._emit(SnapshotDone(command.job_id, count, None))

        def failed(error: DomainError) -> None:
            self._emit(SnapshotDone(command.job_id, error, None))

        self._run(lambda: self._cache.drop(command.object_ids), dropped, failed)

    def _detach_objects(self, object_ids: Container[str]) -> None:
        """Stop offloading for deleted objects: waiting and running requests, prefixes in memory."""
        self._engine.unlink_objects(object_ids)
        for request in list(self._deferred.values()):
            if request.keep_for is not None and request.keep_for.object_id in object_ids:
                self._deferred[request.sequence_id] = replace(request, keep_for=None)

    def changed_load(self) -> DiskCacheLoad | None:
        """The state of the disk cache; None if unchanged since the last call."""
        measured, limits = self._thread.measured, self._cache.limits
        tier = TierLoad(
            *measured.usage,
            limits.max_files,
            limits.max_bytes,
            self._num_hits,
            self._num_misses,
            self._num_written,
            self._num_evicted,
        )
        load = DiskCacheLoad(measured.at, tier)
        if load == self._reported:
            return None
        self._reported = load
        return load

    # --- reading ----------------------------------------------------------------------------------

    @property
    def _indexed(self) -> Collection[SavedPrefix]:
        return self._index.values() if self._index is not None else ()

    def _set_index(self, snapshots: list[Snapshot]) -> None:
        fitting = (each for each in snapshots if each.num_computed < self._served.slot_tokens)
        self._index = {each.snapshot_id: self._without_cells(each) for each in fitting}
        deferred, self._deferred = self._deferred, {}
        for request in deferred.values():
            if not self._start_read(request, self._index):
                self._engine.submit(request)

    def _without_cells(self, snapshot: Snapshot) -> SavedPrefix:
        return replace(self._served.saved_prefix(snapshot, bytearray()), origin=None)

    def _start_read(self, request: SequenceRequest, index: dict[str, SavedPrefix]) -> bool:
        """Read the file with the longest matching prefix; False if memory has about as much."""
        tokens = request.prompt + request.resumed
        matches = {
            name: prefix.shared(
                tokens, request.cache_key, limit=len(tokens) - 1, media=request.media
            )
            for name, prefix in index.items()
        }
        name = max(matches, key=matches.__getitem__, default="")
        in_memory = self._engine.num_reusable_tokens(request)
        if not name or matches[name] - in_memory < MIN_SAVED_TOKENS:
            self._num_misses += in_memory < MIN_SAVED_TOKENS
            return False
        self._deferred[request.sequence_id] = request
        readers = self._readers.setdefault(name, [])
        readers.append(request.sequence_id)
        if len(readers) == 1:
            finish = partial(self._finish_read, name)
            self._run(lambda: self._cache.load_state(name), finish, lambda _: finish(None))
        return True

    def _finish_read(self, name: str, state: bytearray | None) -> None:
        prefix = self._index.get(name) if self._index is not None else None
        restored = False
        if prefix is not None and state is not None:
            restored = self._engine.prefix_cache.put(replace(prefix, state=state))
        if not restored:
            self._remove_from_index(name)  # reading it again would fail again
        deferred = [self.release(sequence_id) for sequence_id in self._readers.pop(name)]
        requests = [request for request in deferred if request is not None]
        self._num_hits += len(requests) if restored else 0
        self._num_misses += 0 if restored else len(requests)
        for request in requests:
            self._engine.submit(request)

    def _remove_from_index(self, name: str) -> None:
        if self._index is not None:
            self._index.pop(name, None)

    # --- writing ----------------------------------------------------------------------------------

    def _write(self, prefix: SavedPrefix) -> None:
        """Write a prefix that memory evicts, unless a file covers it."""
        if self._fingerprint is None or self._index is None:
            return
        if any(_covers(indexed, prefix) for indexed in self._indexed):
            return
        size = len(prefix.state)
        if self._unwritten_bytes and self._unwritten_bytes + size > _MAX_UNWRITTEN_BYTES:
            log.info(
                "prefix is not written to the disk cache: %d bytes are queued",
                self._unwritten_bytes,
            )
            return
        self._unwritten_bytes += size
        snapshot = self._make_snapshot(prefix, self._fingerprint.model)
        replaced = [
            indexed.snapshot_id
            for indexed in self._indexed
            if indexed.kept_for == prefix.kept_for and _covers(prefix, indexed)
        ]

        def written(result: SaveResult) -> None:
            self._unwritten_bytes -= size
            self._num_written += 1
            self._num_evicted += result.num_evicted
            if self._index is not None:
                self._index[snapshot.snapshot_id] = self._without_cells(snapshot)
                for name in self._index.keys() - result.snapshot_ids:  # evicted files
                    self._remove_from_index(name)

        def failed(_: DomainError) -> None:
            self._unwritten_bytes -= size

        self._run(lambda: self._cache.save(snapshot, prefix.state, replaced), written, failed)

    def _make_snapshot(self, prefix: SavedPrefix, digest: str) -> Snapshot:
        tokens = prefix.tokens
        origin = Origin("", 0, "", tokens, len(tokens), "", ())
        return self._served.make_snapshot(prefix, origin, digest, kept_for=prefix.kept_for)

    def _run(
        self,
        work: Callable[[], T],
        then: Callable[[T], None],
        failed: Callable[[DomainError], None],
    ) -> None:
        self._thread.run("disk prefix cache", work, then, failed)


def _covers(one: SavedPrefix, other: SavedPrefix) -> bool:
    """Whether `one` has the prefix `other` except for a few last tokens: chat templates often
    render a turn differently once it is part of a prompt."""
    count = len(other.tokens)
    return count - one.shared(other.tokens, other.key, limit=count) < MIN_SAVED_TOKENS
