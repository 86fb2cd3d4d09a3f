"""Servicer of `KeyService`: convert, call, convert."""

import logging

import grpc
from corral.control.v1 import key_service_pb2 as pb
from corral.control.v1 import key_service_pb2_grpc as rpc

from control_svc.api import convert_operators as convert
from control_svc.domain.listing import PageRequest
from control_svc.usecases.keys import Keys

_log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[object, object]


class KeyServicer(rpc.KeyServiceServicer):
    """API keys over gRPC."""

    def __init__(self, keys: Keys, *, serves_keyless: bool) -> None:
        """`serves_keyless`: whether callers without a key are served beside those with one."""
        self._keys = keys
        self._serves_keyless = serves_keyless

    async def CreateKey(
        self, request: pb.CreateKeyRequest, context: Context
    ) -> pb.CreateKeyResponse:
        """Make a key."""
        created = await self._keys.create(convert.new_key(request))
        if self._serves_keyless:
            _log.warning("a key was made, and callers without one are served too: require_keys")
        return pb.CreateKeyResponse(
            key=convert.key_to_pb(created.key),
            secret=created.secret,
            serves_keyless_callers=self._serves_keyless,
        )

    async def GetKey(self, request: pb.GetKeyRequest, context: Context) -> pb.GetKeyResponse:
        """Describe one key."""
        key = await self._keys.get(request.key_id)
        return pb.GetKeyResponse(key=convert.key_to_pb(key))

    async def ListKeys(self, request: pb.ListKeysRequest, context: Context) -> pb.ListKeysResponse:
        """List keys."""
        asked = PageRequest(request.page_size, request.page_token)
        page = await self._keys.page(asked, request.project_id, with_revoked=request.show_revoked)
        keys = [convert.key_to_pb(key) for key in page.items]
        return pb.ListKeysResponse(keys=keys, next_page_token=page.next_token)

    async def RevokeKey(
        self, request: pb.RevokeKeyRequest, context: Context
    ) -> pb.RevokeKeyResponse:
        """End a key."""
        key = await self._keys.revoke(request.key_id)
        return pb.RevokeKeyResponse(key=convert.key_to_pb(key))

    async def VerifyKey(
        self, request: pb.VerifyKeyRequest, context: Context
    ) -> pb.VerifyKeyResponse:
        """Tell a service what a key may do."""
        return convert.verdict_to_pb(await self._keys.look_up(request.sha256))
