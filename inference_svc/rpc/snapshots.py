"""Saves, restores and drops snapshots for operators."""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime

from corral.inference.v1 import engine_service_pb2 as pb
from corral.inference.v1 import snapshot_pb2 as snapshot_pb

from inference_svc.engine.request import (
    DropCachedPrefixes,
    RestoreSnapshot,
    SaveSnapshot,
    SnapshotCommand,
    project_archive,
)
from inference_svc.engine_client.client import EngineClient
from inference_svc.engine_client.snapshot_requests import UNSET_ID
from inference_svc.model_pool.catalog import ModelEntry
from inference_svc.model_pool.eviction import ModelState
from inference_svc.model_pool.pool import ModelPool
from inference_svc.models.metadata import ModelClass
from inference_svc.snapshots.disk_prefix_cache import DiskPrefixCache
from inference_svc.snapshots.snapshot import Snapshot
from inference_svc.snapshots.store import SnapshotStore
from svc_kit.errors import (
    DomainError,
    FeatureUnsupported,
    ModelNotLoaded,
    SnapshotIncompatible,
    StateNotFound,
    StorageFailed,
    Unavailable,
)
from svc_kit.rpc.message_mapper import encode_timestamp

_OTHER_MODEL = frozenset({"architecture", "model"})
_UPSTREAM = "which an upstream engine serves"
_LOADED = frozenset({ModelState.READY, ModelState.UNLOADING})


class SnapshotService:
    """Snapshot commands, sent to the engine of the right model; all engines share one `folder`.
    Dropping also applies to the `archive`, the disk prefix cache.

    Methods raise `EngineRestarting` if the engine in question may be one that is down.
    """

    def __init__(self, pool: ModelPool, folder: SnapshotStore, archive: DiskPrefixCache) -> None:
        self._pool = pool
        self._folder = folder
        self._archive = archive
        self._drop_lock = asyncio.Lock()  # neither store is thread-safe

    async def save(self, request: pb.SaveSnapshotRequest) -> pb.SaveSnapshotResponse:
        """Save the state of a running or cached sequence.

        Raises `StateNotFound`, `SnapshotTooLarge`, `StorageFailed`, or `FeatureUnsupported` for a
        sequence of an upstream engine.
        """
        name, index = request.request_id, request.index
        for entry in self._pool.catalog:
            if (
                entry.upstream is not None
                and entry.engine is not None
                and _runs(entry.engine, name)
            ):
                raise FeatureUnsupported(feature=f"snapshots of '{entry.name}', {_UPSTREAM}")
        snapshot = await self._run_on_any(
            lambda digest: SaveSnapshot(UNSET_ID, name, index, digest),
            StateNotFound(request=name, index=index),
        )
        return pb.SaveSnapshotResponse(snapshot=_to_proto(snapshot))

    async def restore(self, request: pb.RestoreSnapshotRequest) -> pb.RestoreSnapshotResponse:
        """Restore a snapshot.

        Raises `SnapshotNotFound`, `SnapshotCorrupt`, `SnapshotIncompatible`, `SnapshotTooLarge`,
        `StorageFailed`, or `ModelNotLoaded` if no generating model is loaded.
        """
        default_model = self._pool.catalog.find_model("", ModelClass.DECODER)
        if default_model.upstream is not None:
            raise FeatureUnsupported(feature=f"snapshots of '{default_model.name}', {_UPSTREAM}")
        snapshot = await self._run_on_any(
            lambda digest: RestoreSnapshot(UNSET_ID, request.snapshot_id, digest),
            ModelNotLoaded(model=default_model.name),
        )
        tokens, num_prompt = snapshot.origin.tokens, snapshot.origin.num_prompt
        return pb.RestoreSnapshotResponse(
            snapshot=_to_proto(snapshot),
            prompt_token_ids=tokens[:num_prompt],
            output_token_ids=tokens[num_prompt:],
        )

    async def drop(self, request: pb.DropSnapshotsRequest) -> pb.DropSnapshotsResponse:
        """Delete snapshots and the cached prefixes of stored objects and projects. Unknown ids are
        ignored, and no model needs to be loaded. Raises `StorageFailed`."""
        num_dropped = 0
        if request.snapshot_ids:
            num_dropped += await self._drop_files(request.snapshot_ids)
        owners = (*filter(None, request.object_ids), *map(project_archive, request.projects))
        if owners:
            num_dropped += await self._drop_archived(owners)
        return pb.DropSnapshotsResponse(num_dropped=num_dropped)

    async def _drop_files(self, snapshot_ids: Collection[str]) -> int:
        async with self._drop_lock:
            num_dropped = await asyncio.to_thread(self._folder.drop, snapshot_ids)
            use = await asyncio.to_thread(lambda: self._folder.usage)
        for engine in self._pool.catalog.engines:
            engine.snapshots.use = use
        return num_dropped

    async def delete_expired(self) -> None:
        """Delete the expired files of the disk prefix cache. A failure is only logged."""
        with suppress(StorageFailed):
            async with self._drop_lock:
                await asyncio.to_thread(self._archive.delete_expired)

    async def _drop_archived(self, owners: tuple[str, ...]) -> int:
        """Drop from the disk first, so that no engine loads the files meanwhile, then from every
        engine, which may have prefixes that are not on disk yet, then what an engine that was
        unloaded meanwhile has written. Errors of one do not skip the others."""
        command, errors = DropCachedPrefixes(UNSET_ID, owners), list[DomainError]()
        num_dropped = await self._drop_from_disk(owners, errors)
        for _, engine in self._loaded():
            try:
                engine.check_open()
                num_dropped += await engine.snapshots.run(command)
            except DomainError as error:
                errors.append(error)
        num_dropped += await self._drop_from_disk(owners, errors)
        if errors:
            raise errors[0]
        return num_dropped

    async def _drop_from_disk(self, owners: tuple[str, ...], errors: list[DomainError]) -> int:
        try:
            async with self._drop_lock:
                return await asyncio.to_thread(self._archive.drop, owners)
        except StorageFailed as error:
            errors.append(error)
            return 0

    async def _run_on_any(
        self, command: Callable[[str], SnapshotCommand], default: DomainError
    ) -> Snapshot:
        """Run a command, made from the digest of the model, on each loaded model until one
        succeeds. If all fail, raise the most relevant error; if none is loaded, raise `default`."""
        errors: list[DomainError] = []
        for entry, engine in self._loaded():
            try:
                engine.check_open()
                snapshot = await engine.snapshots.run(command(await _digest(entry)))
            except DomainError as error:
                errors.append(error)
                continue
            for other in self._pool.catalog.engines:  # they share the folder
                other.snapshots.use = engine.snapshots.use
            return snapshot
        raise min(errors, key=_relevance_rank, default=default)

    def _loaded(self) -> list[tuple[ModelEntry, EngineClient]]:
        return [
            (entry, entry.engine)
            for entry in self._pool.catalog
            if entry.file.generates
            and entry.engine is not None
            and entry.upstream is None
            and entry.resident.state in _LOADED
        ]


def _runs(engine: EngineClient, request_id: str) -> bool:
    live = engine.sequences.live.values()
    return any(item.stream.request_id == request_id for item in live)


async def _digest(entry: ModelEntry) -> str:
    """Wait for the model's digest, which identifies its snapshots. Raises `StorageFailed`."""
    await entry.digest_computed.wait()
    if not entry.digest:
        raise StorageFailed(problem=f"the files of the model '{entry.name}' cannot be read")
    return entry.digest


def _relevance_rank(error: DomainError) -> int:
    """Rank an error by relevance: 0 from the requested model, 1 from an engine that is down, 2 from
    another model."""
    is_of_other_model = isinstance(error, StateNotFound) or (
        isinstance(error, SnapshotIncompatible) and error.aspect in _OTHER_MODEL
    )
    return 2 if is_of_other_model else int(isinstance(error, Unavailable))


def _to_proto(snapshot: Snapshot) -> snapshot_pb.Snapshot:
    return snapshot_pb.Snapshot(
        id=snapshot.snapshot_id,
        model=snapshot.model,
        model_digest=snapshot.fingerprint.model,
        num_tokens=snapshot.num_computed,
        size_bytes=snapshot.state_bytes,
        create_time=encode_timestamp(datetime.fromtimestamp(snapshot.created_at, UTC)),
        request_id=snapshot.origin.request_id,
        index=snapshot.origin.choice,
        project=snapshot.origin.project,
    )
