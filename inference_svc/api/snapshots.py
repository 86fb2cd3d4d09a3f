"""Saved sequences on request of operators: what they name, checked, and what they are told."""

from datetime import UTC, datetime

from corral.inference.v1 import engine_service_pb2 as pb
from corral.inference.v1 import snapshot_pb2 as snapshot_pb
from google.protobuf.timestamp_pb2 import Timestamp

from inference_svc.catalog import KnownModel
from inference_svc.engine.request import DropSnapshots, RestoreSnapshot, SaveSnapshot
from inference_svc.pool.pool import ModelPool
from inference_svc.runtime.worker import EngineWorker
from inference_svc.snapshots.description import Snapshot
from svc_kit.errors import (
    EngineRestarting,
    MissingField,
    OutOfRange,
    SnapshotIncompatible,
    StateNotFound,
    TooLong,
)

MAX_DROPPED = 1000
_OTHER_MODEL = frozenset({"architecture", "model"})
_UNNUMBERED = -1  # the worker numbers the jobs


class Snapshots:
    """Saves, restores and drops, with whichever of the loaded models' engines it takes: they share
    one folder. All raise `EngineRestarting` while an engine is away."""

    def __init__(self, pool: ModelPool) -> None:
        self._pool = pool

    async def save(self, request: pb.SaveSnapshotRequest) -> pb.SaveSnapshotResponse:
        """Write a running or kept sequence's state. Raises `StateNotFound`, `SnapshotTooLarge` or
        `StorageFailed`."""
        if not request.request_id:
            raise MissingField(field="request_id")
        if request.index < 0:
            raise OutOfRange(field="index", value=request.index, minimum=0)
        name, index = request.request_id, request.index
        for known, worker in self._loaded():
            command = SaveSnapshot(_UNNUMBERED, name, index, await _digests(known))
            try:
                snapshot = await worker.snapshots.run(command)
            except StateNotFound:
                continue  # it is another model's
            self._share_use(worker)
            return pb.SaveSnapshotResponse(snapshot=_described(snapshot))
        raise StateNotFound(request=name, index=index)

    async def restore(self, request: pb.RestoreSnapshotRequest) -> pb.RestoreSnapshotResponse:
        """Read a state back. Raises `SnapshotNotFound`, `SnapshotCorrupt`, `SnapshotIncompatible`,
        `SnapshotTooLarge` or `StorageFailed`."""
        if not request.snapshot_id:
            raise MissingField(field="snapshot_id")
        snapshot = await self._restored(request.snapshot_id)
        tokens, num_prompt = snapshot.origin.tokens, snapshot.origin.num_prompt
        return pb.RestoreSnapshotResponse(
            snapshot=_described(snapshot),
            prompt_token_ids=tokens[:num_prompt],
            output_token_ids=tokens[num_prompt:],
        )

    async def drop(self, request: pb.DropSnapshotsRequest) -> pb.DropSnapshotsResponse:
        """Delete files; unknown ids are no error. Raises `StorageFailed`."""
        count = len(request.snapshot_ids)
        if count > MAX_DROPPED:
            raise TooLong(field="snapshot_ids", length=count, limit=MAX_DROPPED)
        command = DropSnapshots(_UNNUMBERED, tuple(request.snapshot_ids))
        for _, worker in self._loaded():
            num_dropped = await worker.snapshots.run(command)
            self._share_use(worker)
            return pb.DropSnapshotsResponse(num_dropped=num_dropped)
        raise EngineRestarting()

    async def _restored(self, snapshot_id: str) -> Snapshot:
        """The snapshot, in the engine of the model that it is of; where there is none, the reason
        of the model that came nearest."""
        refusals: list[SnapshotIncompatible] = []
        for known, worker in self._loaded():
            command = RestoreSnapshot(_UNNUMBERED, snapshot_id, await _digests(known))
            try:
                snapshot = await worker.snapshots.run(command)
            except SnapshotIncompatible as error:
                refusals.append(error)
                continue
            self._share_use(worker)
            return snapshot
        if not refusals:
            raise EngineRestarting()
        raise min(refusals, key=lambda error: error.aspect in _OTHER_MODEL)

    def _loaded(self) -> list[tuple[KnownModel, EngineWorker]]:
        """The models that generate and their engines."""
        return [
            (known, known.worker)
            for known in self._pool.catalog
            if known.worker is not None and known.file.generates
        ]

    def _share_use(self, worker: EngineWorker) -> None:
        """What one engine has learned of the folder is so for all."""
        for other in self._pool.catalog.workers:
            other.snapshots.use = worker.snapshots.use


async def _digests(known: KnownModel) -> dict[str, str]:
    await known.digest_known.wait()
    return {known.name: known.digest}


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
