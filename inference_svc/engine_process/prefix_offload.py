"""Writes prefixes to the disk prefix cache, and loads them for later requests, on two threads
beside the step loop. `warm_prefixes.py` says which are written before memory evicts them.
"""

import logging
import time
from array import array
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TypeVar

from inference_svc.engine.events import DiskCacheLoad, TierLoad
from inference_svc.engine.kv_cache.allocator import MIN_SAVED_TOKENS
from inference_svc.engine.request import (
    DropCachedPrefixes,
    SequenceRequest,
    archived_project,
    is_of_project,
)
from inference_svc.engine.saved_state import Origin, SavedPrefix
from inference_svc.engine_client.messages import SnapshotDone
from inference_svc.engine_process.file_thread import FileDone, FileThread
from inference_svc.engine_process.snapshot_io import ServedEngine
from inference_svc.snapshots.disk_prefix_cache import DiskPrefixCache, SaveResult
from inference_svc.snapshots.snapshot import Fingerprint, Snapshot
from svc_kit.errors import DomainError

log = logging.getLogger(__name__)
T = TypeVar("T")
MIN_GROWTH = 256
_GROWTH = 40
_MAX_LENGTHS = 3
"""How many lengths of a conversation stay on disk if its states cannot be cut. The next prompt may
differ from the last one's end, as templates render a turn differently once it is not the last."""
_THREAD = "disk prefix cache"
_MAX_READ_S = 30.0
"""A read that takes longer hangs, and requests do not wait for it."""
_MIN_USES_S = 60.0
"""How far apart two uses of a file in memory are that are counted on disk."""
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
        max_read_s: float = _MAX_READ_S,
    ) -> None:
        self._max_read_s = max_read_s
        self._served = served
        self._engine = served.engine
        self._cache = cache
        self._emit = emit
        self._reader = DiskPrefixCache(cache.limits)
        self._reads = FileThread("disk-prefix-reads", lambda: cache.usage, post)
        self._writes = FileThread("disk-prefix-writes", lambda: cache.usage, post)
        self._fingerprint: Fingerprint | None = None  # set by the first request that is archived
        self._index: dict[str, SavedPrefix] | None = None  # without KV cells; None until listed
        self._unwritten: dict[str, SavedPrefix] = {}  # without KV cells
        self._deferred: dict[int, SequenceRequest] = {}
        self._readers: dict[str, list[int]] = {}
        self._used_at: dict[str, float] = {}  # of files whose prefix was found in memory
        self._unwritten_bytes = 0
        self._last_failure: type[DomainError] | None = None
        self._num_hits = self._num_misses = self._num_written = self._num_evicted = 0
        self._reported: DiskCacheLoad | None = None
        self._engine.prefix_cache.on_evicted = self._write_evicted

    def defer(self, request: SequenceRequest) -> bool:
        """Whether a request has to wait for its prefix; if so, it is submitted later."""
        if request.keep_for is None or not self._cache.is_enabled or self._reading_hangs:
            return False
        if self._fingerprint is None:
            self._fingerprint = fingerprint = self._served.fingerprint_of(request.keep_for.digest)
            self._reads.run(
                _THREAD,
                lambda: self._reader.find_compatible(fingerprint),
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

    @property
    def has_deferred(self) -> bool:
        """Whether requests wait for their prefixes."""
        return bool(self._deferred)

    @property
    def _reading_hangs(self) -> bool:
        return self._reads.busy_s > self._max_read_s

    def submit_overdue(self) -> None:
        """Submit the deferred requests if the disk hangs. Called from time to time while there are
        any."""
        if not self._deferred or not self._reading_hangs:
            return
        log.warning("the disk prefix cache hangs: prompts are computed without it")
        deferred, self._deferred = self._deferred, {}
        for request in deferred.values():
            self._engine.submit(request)

    def drop(self, command: DropCachedPrefixes) -> None:
        """Delete the files of the owners, and then emit `SnapshotDone` with their number."""
        self._detach(command.owners)

        def dropped(count: int) -> None:
            self._detach(command.owners)  # again: a read may have finished meanwhile
            for prefix in list((self._index or {}).values()):
                if prefix.kept_for in command.owners:
                    self._remove_from_index(prefix.snapshot_id)
            self._emit(SnapshotDone(command.job_id, count, None))

        def failed(error: DomainError) -> None:
            self._emit(SnapshotDone(command.job_id, error, None))

        self._writes.run(_THREAD, lambda: self._cache.drop(command.owners), dropped, failed)

    def _detach(self, owners: Container[str]) -> None:
        """Stop offloading for deleted owners: waiting and running requests, prefixes in memory."""
        self._engine.unlink_owners(owners)
        for request in list(self._deferred.values()):
            if request.keep_for is not None and request.keep_for.name in owners:
                self._deferred[request.sequence_id] = replace(request, keep_for=None)

    def changed_load(self) -> DiskCacheLoad | None:
        """The state of the disk cache; None if unchanged since the last call."""
        measured = max(self._reads.measured, self._writes.measured)
        limits = self._cache.limits
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
        """Read the file with the longest matching prefix; False if memory has about as much, or the
        request computes all of its prompt."""
        if not request.may_start_cached:
            return False
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
            if matches.get(name, 0) >= MIN_SAVED_TOKENS:
                self._mark_used(name)
            return False
        self._deferred[request.sequence_id] = request
        readers = self._readers.setdefault(name, [])
        readers.append(request.sequence_id)
        if len(readers) == 1:
            finish = partial(self._finish_read, name)
            read = partial(self._reader.load_state, name)
            self._reads.run(_THREAD, read, finish, lambda _: finish(None))
        return True

    def _mark_used(self, name: str) -> None:
        now = time.monotonic()
        if now - self._used_at.get(name, -_MIN_USES_S) >= _MIN_USES_S:
            self._used_at[name] = now
            mark = partial(self._cache.mark_used, name)
            self._writes.run(_THREAD, mark, lambda _: None, lambda _: None)

    def _finish_read(self, name: str, state: bytearray | None) -> None:
        prefix = self._index.get(name) if self._index is not None else None
        restored = False
        if prefix is not None and state is not None:
            project = archived_project(prefix.kept_for)
            restored = self._engine.prefix_cache.put(replace(prefix, state=state, project=project))
        if not restored:
            self._remove_from_index(name)  # reading it again would fail again
        deferred = [self.release(sequence_id) for sequence_id in self._readers.pop(name)]
        requests = [request for request in deferred if request is not None]
        self._num_hits += len(requests) if restored else 0
        for request in requests:
            # The file may have been replaced by a longer one, or a shorter one may be intact.
            if restored or not self._start_read(request, self._index or {}):
                self._engine.submit(request)

    def _remove_from_index(self, name: str) -> None:
        self._used_at.pop(name, None)
        if self._index is not None:
            self._index.pop(name, None)

    # --- writing ----------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether prefixes can be written: a request has said which model this is."""
        return self._index is not None

    def num_archived(self, tokens: "array[int]", key: bytes) -> int:
        """How many of these tokens a file has from which they can be restored, also one that is
        still to be written."""
        limit = len(tokens)
        counts = (each.shared(tokens, key, limit=limit) for each in self._archived())
        return max(counts, default=0)

    def _archived(self) -> Iterable[SavedPrefix]:
        return chain((self._index or {}).values(), self._unwritten.values())

    def _write_evicted(self, prefix: SavedPrefix) -> None:
        """Write a prefix that memory evicts, unless a file covers it, or most of it if it is of a
        project, whose stateless requests may be many and short."""
        num_tokens = len(prefix.tokens)
        least = least_growth(num_tokens) if is_of_project(prefix.kept_for) else MIN_SAVED_TOKENS
        if num_tokens - self.num_archived(prefix.tokens, prefix.key) >= least:
            self.write(prefix, lambda _: None)

    def write(self, prefix: SavedPrefix, then: Callable[[float | None], None]) -> bool:
        """Write a prefix, then call `then` with the seconds that it took, None if it failed.
        Returns False, and does not call it, if no model is known or too much is queued."""
        if self._fingerprint is None or self._index is None:
            return False
        size = len(prefix.state)
        if self._unwritten_bytes and self._unwritten_bytes + size > _MAX_UNWRITTEN_BYTES:
            log.info(
                "prefix is not written to the disk cache: %d bytes are queued",
                self._unwritten_bytes,
            )
            return False
        snapshot = self._make_snapshot(prefix, self._fingerprint.model)
        replaced = self._replaced_by(prefix)
        self._unwritten_bytes += size
        self._unwritten[snapshot.snapshot_id] = self._without_cells(snapshot)

        def end(timed: tuple[SaveResult, float] | None) -> None:
            self._unwritten_bytes -= size
            written = self._unwritten.pop(snapshot.snapshot_id)
            if timed is not None:
                self._last_failure = None
                self._add_to_index(written, timed[0])
            then(None if timed is None else timed[1])

        def fail(error: DomainError) -> None:
            if type(error) is not self._last_failure:  # else a full disk is logged at each write
                self._last_failure = type(error)
                log.warning("a prefix of %d tokens is not archived: %s", len(prefix.tokens), error)
            end(None)

        save = partial(_timed, self._cache.save, snapshot, prefix.state, replaced)
        self._writes.run(_THREAD, save, end, fail)
        return True

    def _replaced_by(self, prefix: SavedPrefix) -> set[str]:
        """The files of the owner that a prefix replaces: those that it covers and, as states that
        cannot be cut cover none, those that it continues but for the longest."""
        owned = [each for each in self._archived() if each.kept_for == prefix.kept_for]
        continued = [each for each in owned if _continues(prefix, each)]
        continued.sort(key=lambda each: len(each.tokens), reverse=True)
        covered = [each for each in owned if _covers(prefix, each)]
        return {each.snapshot_id for each in (*covered, *continued[_MAX_LENGTHS - 1 :])}

    def remove_missing(self, then: Callable[[], None]) -> None:
        """Stop counting on files that are gone, because engines of other models have evicted them
        or because they have expired, and then call `then`."""

        def end(snapshot_ids: Container[str]) -> None:
            self._limit_index(snapshot_ids)
            then()

        self._writes.run(_THREAD, self._cache.snapshot_ids, end, lambda _: then())

    def after_writes(self, then: Callable[[], None]) -> None:
        """Call `then` when everything that is queued has been written."""
        self._writes.run(_THREAD, lambda: None, lambda _: then(), lambda _: then())

    def _add_to_index(self, written: SavedPrefix, result: SaveResult) -> None:
        self._num_written += 1
        self._num_evicted += result.num_evicted
        if self._index is not None:
            self._index[written.snapshot_id] = written
        self._limit_index(result.snapshot_ids)

    def _limit_index(self, snapshot_ids: Container[str]) -> None:
        for name in [*(self._index or ())]:
            if name not in snapshot_ids:
                self._remove_from_index(name)

    def _make_snapshot(self, prefix: SavedPrefix, digest: str) -> Snapshot:
        tokens = prefix.tokens
        origin = Origin("", 0, "", tokens, len(tokens), "", ())
        return self._served.make_snapshot(prefix, origin, digest, kept_for=prefix.kept_for)


def least_growth(num_tokens: int) -> int:
    """How many tokens of a prefix must not be on disk, so that it is written again while it grows:
    a fortieth of it, since its new cells are written, but all of them are copied and hashed."""
    return max(MIN_GROWTH, num_tokens // _GROWTH)


def _timed(work: Callable[..., T], *arguments: object) -> tuple[T, float]:
    """The result of the work, and the seconds that it took."""
    started = time.monotonic()
    return work(*arguments), time.monotonic() - started


def _continues(one: SavedPrefix, other: SavedPrefix) -> bool:
    """Whether `one` starts with all tokens of `other`."""
    return one.key == other.key and one.tokens[: len(other.tokens)] == other.tokens


def _covers(one: SavedPrefix, other: SavedPrefix) -> bool:
    """Whether `one` has the prefix `other` except for a few last tokens: chat templates often
    render a turn differently once it is part of a prompt."""
    count = len(other.tokens)
    return count - one.shared(other.tokens, other.key, limit=count) < MIN_SAVED_TOKENS
