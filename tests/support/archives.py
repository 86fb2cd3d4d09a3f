"""The archive of the inference service in tests: one that keeps nothing, and a service that names
objects to a real one."""

import os
import signal
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import grpc
import pytest
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import generation_pb2 as generation
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1 import load_pb2 as load_pb

from control_svc.base.ids import IdSource
from control_svc.inference.prefix_cleanup import PrefixCleanup
from tests.support.rpc import Answer, Rpc, failure_of, gather, options, rich
from tests.support.services import MODEL

NO_ARCHIVE: Final = PrefixCleanup(IdSource(lambda: datetime.now(UTC)), is_used=False)
WORDS: Final = range(300, 900)
TURN: Final = 250
"""Tokens; `ROOM` is for one state of as many."""
ROOM: Final = {"engine.slots": 1, "engine.saved_prefix_mib": 1}


@dataclass(frozen=True)
class Caller:
    """The control service, as the inference service knows it."""

    rpc: Rpc
    token: str

    def acting(self, project: str) -> tuple[tuple[str, str], ...]:
        """On whose behalf it calls."""
        return (
            ("authorization", f"Bearer {self.token}"),
            ("x-corral-project", project),
            ("x-corral-scopes", "admin,inference"),
        )

    async def say(self, tokens: list[int], kept_for: str = "", project: str = "red") -> Answer:
        """One turn of an object, or of nobody's."""
        asked = options(
            stopping={"max_tokens": 4, "ignore_eos": True},
            cache=generation.CacheOptions(keep_for=kept_for),
        )
        request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=tokens), options=asked)
        return await gather(self.rpc.inference.Generate(request, metadata=self.acting(project)))

    async def drop(self, *object_ids: str) -> int:
        """How many files went; all that was evicted before has been written."""
        asked = engine_pb.DropSnapshotsRequest(object_ids=object_ids)
        answer = await self.rpc.engine.DropSnapshots(asked, metadata=self.acting("red"))
        return answer.num_dropped

    async def archive(self) -> load_pb.PrefixTier:
        """How the archive is."""
        asked = engine_pb.GetLoadRequest()
        answer = await self.rpc.engine.GetLoad(asked, metadata=self.acting("red"))
        return answer.load.archive

    async def unload(self) -> None:
        """Have no model loaded."""
        asked = engine_pb.UnloadModelRequest(model=MODEL)
        await self.rpc.engine.UnloadModel(asked, metadata=self.acting("red"))

    async def evict(self, num_tokens: int = TURN) -> None:
        """Others take the only slot, and then the memory, which has room for one of them."""
        for first in (50, 51):
            await self.say([first, *WORDS[:num_tokens]])
        await self.drop("nobody")

    async def kill_engine(self) -> None:
        """Have the engine die, and the frontend know it."""
        info = await self.rpc.engine.GetServerInfo(
            engine_pb.GetServerInfoRequest(), metadata=self.acting("red")
        )
        endless = pb.GenerateRequest(text="On", options=options(stopping={"ignore_eos": True}))
        stream = self.rpc.inference.Generate(endless, metadata=self.acting("red"))
        await anext(aiter(stream))
        os.kill(info.engine_pid, signal.SIGKILL)
        assert (await failure_of(stream)).reason == "ENGINE_RESTARTING"

    async def until_known(self) -> None:
        """Until the digest of the model is known, which a restore waits for."""
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await self.rpc.engine.RestoreSnapshot(
                engine_pb.RestoreSnapshotRequest(snapshot_id=f"snap_{'0' * 24}"),
                metadata=self.acting("red"),
            )
        assert rich(failure.value).reason == "SNAPSHOT_NOT_FOUND"
