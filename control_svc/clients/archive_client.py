"""The archive of the inference service, which the control service cleans up for itself: deleting
needs rights that the callers whose objects went do not have."""

from typing import Final

import grpc.aio
from corral.inference.v1 import engine_service_pb2 as pb
from corral.inference.v1.engine_service_pb2_grpc import EngineServiceStub

from control_svc.clients.acting import SERVICE
from svc_kit.auth import ServiceToken
from svc_kit.rpc_client import translate_errors

_TIMEOUT_S: Final = 30.0


class RpcArchive:
    """An `Archive` over a channel."""

    def __init__(self, channel: grpc.aio.Channel, token: ServiceToken) -> None:
        self._stub = EngineServiceStub(channel)
        self._metadata = (("authorization", f"Bearer {token.secret}"),)

    async def drop(self, object_id: str) -> None:
        """Delete what is kept for an object. Raises what the service answers."""
        asked = pb.DropSnapshotsRequest(object_ids=[object_id])
        with translate_errors(SERVICE):
            await self._stub.DropSnapshots(asked, metadata=self._metadata, timeout=_TIMEOUT_S)
