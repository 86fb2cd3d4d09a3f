"""Saved sequences on request of operators: what they name, checked, and what they are told."""

from datetime import UTC, datetime

from corral.inference.v1 import engine_service_pb2 as pb
from corral.inference.v1 import snapshot_pb2 as snapshot_pb
from google.protobuf.timestamp_pb2 import Timestamp

from inference_svc.catalog import Catalog
from inference_svc.engine.request import DropSnapshots, RestoreSnapshot, SaveSnapshot
from inference_svc.runtime.worker import EngineWorker
from inference_svc.snapshots.description import Snapshot
from svc_kit.errors import MissingField, OutOfRange, TooLong

MAX_DROPPED = 1000
_UNNUMBERED = -1  # the worker numbers the jobs


class Snapshots:
    """Saves, restores and drops. All raise `EngineRestarting` while the engine is away."""

    def __init__(self, catalog: Catalog, worker: EngineWorker) -> None:
        self._catalog = catalog
        self._worker = worker

    async def save(self, request: pb.SaveSnapshotRequest) -> pb.SaveSnapshotResponse:
        """Write a running or kept sequence's state. Raises `StateNotFound`, `SnapshotTooLarge` or
        `StorageFailed`."""
        if not request.request_id:
            raise MissingField(field="request_id")
        if request.index < 0:
            raise OutOfRange(field="index", value=request.index, minimum=0)
        digests = await self._catalog.digests()
        command = SaveSnapshot(_UNNUMBERED, request.request_id, request.index, digests)
        snapshot = await self._worker.snapshots.run(command)
        return pb.SaveSnapshotResponse(snapshot=_described(snapshot))

    async def restore(self, request: pb.RestoreSnapshotRequest) -> pb.RestoreSnapshotResponse:
        """Read a state back. Raises `SnapshotNotFound`, `SnapshotCorrupt`, `SnapshotIncompatible`,
        `SnapshotTooLarge` or `StorageFailed`."""
        if not request.snapshot_id:
            raise MissingField(field="snapshot_id")
        digests = await self._catalog.digests()
        command = RestoreSnapshot(_UNNUMBERED, request.snapshot_id, digests)
        snapshot = await self._worker.snapshots.run(command)
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
        num_dropped = await self._worker.snapshots.run(command)
        return pb.DropSnapshotsResponse(num_dropped=num_dropped)


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
