"""Save, restore, list and drop snapshots on request of operators."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from datetime import UTC, datetime
from typing import TypeVar

from corral.inference.v1 import engine_service_pb2 as pb
from corral.inference.v1 import snapshot_pb2 as snapshot_pb
from google.protobuf.timestamp_pb2 import Timestamp

from inference_svc.engine.request import DropCachedPrefixes, RestoreSnapshot, SaveSnapshot
from inference_svc.engine_client.client import EngineClient
from inference_svc.model_pool.catalog import ModelEntry
from inference_svc.model_pool.eviction import ModelState
from inference_svc.model_pool.pool import ModelPool
from inference_svc.models.metadata import ModelClass
from inference_svc.snapshots.disk_prefix_cache import DiskPrefixCache
from inference_svc.snapshots.snapshot import Snapshot
from inference_svc.snapshots.store import SnapshotStore
from svc_kit.errors import (
    DomainError,
    MissingField,
    ModelNotLoaded,
    OutOfRange,
    SnapshotIncompatible,
    StateNotFound,
    StorageFailed,
    TooLong,
    Unavailable,
)

T = TypeVar("T")
MAX_DROPPED = 1000
_OTHER_MODEL = frozenset({"architecture", "model"})
_UNNUMBERED = -1  # the engine numbers the jobs
_LOADED = frozenset({ModelState.READY, ModelState.UNLOADING})


class SnapshotService:
    """Saves and restores, with whichever of the loaded models' engines it takes: they share one
    `folder`; and drops, there and from the `archive` of stored objects. All raise
    `EngineRestarting` where it may have taken an engine that is away."""

    def __init__(self, pool: ModelPool, folder: SnapshotStore, archive: DiskPrefixCache) -> None:
        self._pool = pool
        self._folder = folder
        self._archive = archive
        self._one_drop = asyncio.Lock()  # both are used by one thread at a time

    async def save(self, request: pb.SaveSnapshotRequest) -> pb.SaveSnapshotResponse:
        """Write a running or kept sequence's state. Raises `StateNotFound`, `SnapshotTooLarge` or
        `StorageFailed`."""
        if not request.request_id:
            raise MissingField(field="request_id")
        if request.index < 0:
            raise OutOfRange(field="index", value=request.index, minimum=0)
        name, index = request.request_id, request.index

        async def ask(entry: ModelEntry, engine: EngineClient) -> Snapshot:
            command = SaveSnapshot(_UNNUMBERED, name, index, await _digest(entry))
            return await engine.snapshots.run(command)

        nowhere = StateNotFound(request=name, index=index)
        snapshot = await self._first(self._generating(), ask, nowhere)
        return pb.SaveSnapshotResponse(snapshot=_described(snapshot))

    async def restore(self, request: pb.RestoreSnapshotRequest) -> pb.RestoreSnapshotResponse:
        """Read a state back. Raises `SnapshotNotFound`, `SnapshotCorrupt`, `SnapshotIncompatible`,
        `SnapshotTooLarge`, `StorageFailed`, or `ModelNotLoaded` where no model is that
        generates."""
        if not request.snapshot_id:
            raise MissingField(field="snapshot_id")

        async def ask(entry: ModelEntry, engine: EngineClient) -> Snapshot:
            command = RestoreSnapshot(_UNNUMBERED, request.snapshot_id, await _digest(entry))
            return await engine.snapshots.run(command)

        snapshot = await self._first(self._generating(), ask, self._nothing_loaded())
        tokens, num_prompt = snapshot.origin.tokens, snapshot.origin.num_prompt
        return pb.RestoreSnapshotResponse(
            snapshot=_described(snapshot),
            prompt_token_ids=tokens[:num_prompt],
            output_token_ids=tokens[num_prompt:],
        )

    async def drop(self, request: pb.DropSnapshotsRequest) -> pb.DropSnapshotsResponse:
        """Delete files, and what is kept for objects; unknown ids are no error, and no model has to
        be loaded. Raises `StorageFailed`."""
        for field in ("snapshot_ids", "object_ids"):
            count = len(getattr(request, field))
            if count > MAX_DROPPED:
                raise TooLong(field=field, length=count, limit=MAX_DROPPED)
        num_dropped = 0
        if request.snapshot_ids:
            num_dropped += await self._drop_files(request.snapshot_ids)
        if request.object_ids:
            num_dropped += await self._drop_archived(tuple(filter(None, request.object_ids)))
        return pb.DropSnapshotsResponse(num_dropped=num_dropped)

    async def _drop_files(self, snapshot_ids: Collection[str]) -> int:
        async with self._one_drop:
            num_dropped = await asyncio.to_thread(self._folder.drop, snapshot_ids)
            use = await asyncio.to_thread(lambda: self._folder.usage)
        for engine in self._pool.catalog.engines:
            engine.snapshots.use = use
        return num_dropped

    async def _drop_archived(self, object_ids: tuple[str, ...]) -> int:
        """From the disk first, so that an engine that loads meanwhile finds nothing there; then by
        every engine: each has what it has not archived yet. One that is away is no reason to leave
        out the others."""
        async with self._one_drop:
            num_dropped = await asyncio.to_thread(self._archive.drop, object_ids)
        command, refusals = DropCachedPrefixes(_UNNUMBERED, object_ids), []
        for _, engine in self._loaded(self._generating()):
            try:
                engine.check_open()
                num_dropped += await engine.snapshots.run(command)
            except DomainError as error:
                refusals.append(error)
        if refusals:
            raise refusals[0]
        return num_dropped

    async def _first(
        self,
        models: Iterable[ModelEntry],
        ask: Callable[[ModelEntry, EngineClient], Awaitable[T]],
        otherwise: DomainError,
    ) -> T:
        """The first answer of a loaded model's engine that is no refusal. Raises the refusal
        that says most; `otherwise` where no model is loaded."""
        refusals: list[DomainError] = []
        for entry, engine in self._loaded(models):
            try:
                engine.check_open()
                answer = await ask(entry, engine)
            except DomainError as error:
                refusals.append(error)
                continue
            self._share_use(engine)
            return answer
        raise min(refusals, key=_distance, default=otherwise)

    @staticmethod
    def _loaded(models: Iterable[ModelEntry]) -> list[tuple[ModelEntry, EngineClient]]:
        return [
            (entry, entry.engine)
            for entry in models
            if entry.engine is not None and entry.resident.state in _LOADED
        ]

    def _generating(self) -> list[ModelEntry]:
        return [entry for entry in self._pool.catalog if entry.file.generates]

    def _nothing_loaded(self) -> ModelNotLoaded:
        """Names the model that an operator would load first."""
        return ModelNotLoaded(model=self._pool.catalog.find_model("", ModelClass.DECODER).name)

    def _share_use(self, engine: EngineClient) -> None:
        """What one engine has learned of the folder is so for all."""
        for other in self._pool.catalog.engines:
            other.snapshots.use = engine.snapshots.use


async def _digest(entry: ModelEntry) -> str:
    """The digest that identifies snapshots of the model. Raises `StorageFailed`."""
    await entry.digest_computed.wait()
    if not entry.digest:
        raise StorageFailed(problem=f"the files of the model '{entry.name}' cannot be read")
    return entry.digest


def _distance(refusal: DomainError) -> int:
    """How far a refusal is from the model that was meant: it comes from that one, from one that
    could not be asked, or from another."""
    is_elsewhere = isinstance(refusal, StateNotFound) or (
        isinstance(refusal, SnapshotIncompatible) and refusal.aspect in _OTHER_MODEL
    )
    return 2 if is_elsewhere else int(isinstance(refusal, Unavailable))


def _described(snapshot: Snapshot) -> snapshot_pb.Snapshot:
    created = Timestamp()
    created.FromDatetime(datetime.fromtimestamp(snapshot.created_at, UTC))
    return snapshot_pb.Snapshot(
        id=snapshot.snapshot_id,
        model=snapshot.model,
        model_digest=snapshot.fingerprint.model,
        num_tokens=snapshot.num_computed,
        size_bytes=snapshot.state_bytes,
        create_time=created,
        request_id=snapshot.origin.request_id,
        index=snapshot.origin.choice,
        project=snapshot.origin.project,
    )
