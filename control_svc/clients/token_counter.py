"""The tokens of prompts, counted by the inference service on behalf of an object's project."""

from typing import Final

import grpc.aio
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub

from control_svc.clients.acting import SERVICE, acting_for
from control_svc.clients.turn_client import PRIORITIES, chat_request
from control_svc.domain.turns import TurnRequest
from svc_kit.auth import ServiceToken
from svc_kit.rpc_client import translate_errors

_KEY_ID: Final = "turn"


class RpcTokenCounter:
    """A `TokenCounter` over a channel."""

    def __init__(
        self, channel: grpc.aio.Channel, token: ServiceToken | None, *, timeout_s: float
    ) -> None:
        self._stub = InferenceServiceStub(channel)
        self._token = token
        self._timeout_s = timeout_s

    async def count(self, request: TurnRequest) -> int:
        """The tokens of the prompt of a turn. Raises what the service answers."""
        asked = chat_request(request)
        counting = pb.CountTokensRequest(model=asked.model, conversation=asked.conversation)
        metadata = acting_for(self._token, request.project, PRIORITIES[request.priority], _KEY_ID)
        with translate_errors(SERVICE):
            counted = await self._stub.CountTokens(
                counting, metadata=metadata, timeout=self._timeout_s
            )
        return counted.prompt_tokens
