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
from inference_svc.model_pool.catalog import KnownModel
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
_UNNUMBERED = -1  # the worker numbers the jobs
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

        async def ask(known: KnownModel, worker: EngineClient) -> Snapshot:
            command = SaveSnapshot(_UNNUMBERED, name, index, await _digest(known))
            return await worker.snapshots.run(command)

        nowhere = StateNotFound(request=name, index=index)
        snapshot = await self._first(self._generating(), ask, nowhere)
        return pb.SaveSnapshotResponse(snapshot=_described(snapshot))

    async def restore(self, request: pb.RestoreSnapshotRequest) -> pb.RestoreSnapshotResponse:
        """Read a state back. Raises `SnapshotNotFound`, `SnapshotCorrupt`, `SnapshotIncompatible`,
        `SnapshotTooLarge`, `StorageFailed`, or `ModelNotLoaded` where no model is that
        generates."""
        if not request.snapshot_id:
            raise MissingField(field="snapshot_id")

        async def ask(known: KnownModel, worker: EngineClient) -> Snapshot:
            command = RestoreSnapshot(_UNNUMBERED, request.snapshot_id, await _digest(known))
            return await worker.snapshots.run(command)

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
            use = await asyncio.to_thread(lambda: self._folder.use)
        for worker in self._pool.catalog.workers:
            worker.snapshots.use = use
        return num_dropped

    async def _drop_archived(self, object_ids: tuple[str, ...]) -> int:
        """From the disk first, so that an engine that loads meanwhile finds nothing there; then by
        every engine: each has what it has not archived yet. One that is away is no reason to leave
        out the others."""
        async with self._one_drop:
            num_dropped = await asyncio.to_thread(self._archive.drop, object_ids)
        command, refusals = DropCachedPrefixes(_UNNUMBERED, object_ids), []
        for _, worker in self._loaded(self._generating()):
            try:
                worker.check_open()
                num_dropped += await worker.snapshots.run(command)
            except DomainError as error:
                refusals.append(error)
        if refusals:
            raise refusals[0]
        return num_dropped

    async def _first(
        self,
        models: Iterable[KnownModel],
        ask: Callable[[KnownModel, EngineClient], Awaitable[T]],
        otherwise: DomainError,
    ) -> T:
        """The first answer of a loaded model's engine that is no refusal. Raises the refusal
        that says most; `otherwise` where no model is loaded."""
        refusals: list[DomainError] = []
        for known, worker in self._loaded(models):
            try:
                worker.check_open()
                answer = await ask(known, worker)
            except DomainError as error:
                refusals.append(error)
                continue
            self._share_use(worker)
            return answer
        raise min(refusals, key=_distance, default=otherwise)

    @staticmethod
    def _loaded(models: Iterable[KnownModel]) -> list[tuple[KnownModel, EngineClient]]:
        return [
            (known, known.worker)
            for known in models
            if known.worker is not None and known.resident.state in _LOADED
        ]

    def _generating(self) -> list[KnownModel]:
        return [known for known in self._pool.catalog if known.file.generates]

    def _nothing_loaded(self) -> ModelNotLoaded:
        """Names the model that an operator would load first."""
        return ModelNotLoaded(model=self._pool.catalog.find_model("", ModelClass.DECODER).name)

    def _share_use(self, worker: EngineClient) -> None:
        """What one engine has learned of the folder is so for all."""
        for other in self._pool.catalog.workers:
            other.snapshots.use = worker.snapshots.use


async def _digest(known: KnownModel) -> str:
    """The digest that identifies snapshots of the model. Raises `StorageFailed`."""
    await known.digest_known.wait()
    if not known.digest:
        raise StorageFailed(problem=f"the files of the model '{known.name}' cannot be read")
    return known.digest


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
