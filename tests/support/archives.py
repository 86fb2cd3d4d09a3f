"""The snapshot archive of the inference service in tests: a disabled one, and a client of a real
one."""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import grpc
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import generation_pb2 as generation
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1 import load_pb2 as load_pb

from control_svc.base.ids import IdSource
from control_svc.inference.prefix_cleanup import PrefixCleanup
from inference_svc.engine.request import project_archive
from inference_svc.snapshots.store import FolderLimits, SnapshotStore
from svc_kit.errors import SnapshotCorrupt, SnapshotNotFound
from tests.support.rpc import Answer, Rpc, gather, options, parse_error, read_error
from tests.support.services import MODEL

NO_ARCHIVE: Final = PrefixCleanup(IdSource(lambda: datetime.now(UTC)), is_used=False)
WORDS: Final = range(300, 900)
TURN: Final = 250
"""Number of tokens of a prompt. `ROOM` has memory for one saved prefix of this size."""
ROOM: Final = {"engine.slots": 1, "engine.saved_prefix_mib": 1}


def archived_tokens(directory: Path, project: str | None = None) -> list[int]:
    """The number of tokens in each file of a running Corral, of all or of a project's stateless
    requests."""
    store = SnapshotStore(FolderLimits(directory / "data" / "snapshots" / "archive", 0, 0))
    counts = []
    for snapshot_id in store.ids():
        with suppress(SnapshotNotFound, SnapshotCorrupt):  # a longer one has just replaced it
            snapshot = store.describe(snapshot_id)
            if project is None or snapshot.kept_for == project_archive(project):
                counts.append(snapshot.num_computed)
    return counts


@dataclass(frozen=True)
class Caller:
    """Calls the inference service as the control service does."""

    rpc: Rpc
    token: str

    def metadata(self, project: str) -> tuple[tuple[str, str], ...]:
        """Call metadata with the service token, on behalf of a project."""
        return (
            ("authorization", f"Bearer {self.token}"),
            ("x-corral-project", project),
            ("x-corral-scopes", "admin,inference"),
        )

    async def generate(self, tokens: list[int], kept_for: str = "", project: str = "red") -> Answer:
        """Generate four tokens; `kept_for` is the id of the object that owns the prefix."""
        generation_options = options(
            stopping={"max_tokens": 4, "ignore_eos": True},
            cache=generation.CacheOptions(keep_for=kept_for),
        )
        request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=tokens), options=generation_options)
        return await gather(self.rpc.inference.Generate(request, metadata=self.metadata(project)))

    async def drop_snapshots(self, *object_ids: str) -> int:
        """Delete the snapshots of objects, after pending writes. Returns the number of files."""
        request = engine_pb.DropSnapshotsRequest(object_ids=object_ids)
        answer = await self.rpc.engine.DropSnapshots(request, metadata=self.metadata("red"))
        return answer.num_dropped

    async def read_archive_load(self) -> load_pb.PrefixTier:
        request = engine_pb.GetLoadRequest()
        answer = await self.rpc.engine.GetLoad(request, metadata=self.metadata("red"))
        return answer.load.archive

    async def unload(self) -> None:
        request = engine_pb.UnloadModelRequest(model=MODEL)
        await self.rpc.engine.UnloadModel(request, metadata=self.metadata("red"))

    async def evict(self, num_tokens: int = TURN) -> None:
        """Evict everything from the only slot and the prefix memory with two other prompts."""
        for first in (50, 51):
            await self.generate([first, *WORDS[:num_tokens]])
        await self.drop_snapshots("nobody")

    async def kill_engine(self) -> None:
        """Kill the engine and wait until the frontend has noticed."""
        info = await self.rpc.engine.GetServerInfo(
            engine_pb.GetServerInfoRequest(), metadata=self.metadata("red")
        )
        endless = pb.GenerateRequest(text="On", options=options(stopping={"ignore_eos": True}))
        stream = self.rpc.inference.Generate(endless, metadata=self.metadata("red"))
        await anext(aiter(stream))
        os.kill(info.engine_pid, signal.SIGKILL)
        assert (await read_error(stream)).reason == "ENGINE_RESTARTING"

    async def wait_for_model_digest(self) -> None:
        """Wait until the digest of the model is known, as every restore does. Raises
        grpc.aio.AioRpcError while the engine is down."""
        request = engine_pb.RestoreSnapshotRequest(snapshot_id=f"snap_{'0' * 24}")
        try:
            await self.rpc.engine.RestoreSnapshot(request, metadata=self.metadata("red"))
        except grpc.aio.AioRpcError as error:
            if parse_error(error).reason != "SNAPSHOT_NOT_FOUND":
                raise
