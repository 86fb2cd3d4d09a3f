"""Responses as the routes see them: typed calls as a caller, with a deadline."""

import grpc.aio
from corral.control.v1 import response_pb2
from corral.control.v1 import response_service_pb2 as pb
from corral.control.v1.response_service_pb2_grpc import ResponseServiceStub

from gateway.auth import Caller, Credentials
from gateway.calls import OneAnswer, OneCall
from gateway.control import SERVICE, ControlCalls

ResponseStreamCall = OneCall[pb.StreamResponseResponse]
WatchCall = OneCall[pb.WatchResponseResponse]


class ResponseClient(ControlCalls):
    """Responses over one channel. The deadline of those that generate is `transfer_timeout_s`."""

    def __init__(
        self, channel: grpc.aio.Channel, credentials: Credentials, transfer_timeout_s: float
    ) -> None:
        super().__init__(credentials, transfer_timeout_s)
        self._stub = ResponseServiceStub(channel)

    def create(
        self, request: pb.CreateResponseRequest, caller: Caller
    ) -> OneAnswer[pb.CreateResponseResponse]:
        """Have the model answer, whole."""
        call = self._stub.CreateResponse(
            request,
            timeout=self._transfer_timeout_s,
            metadata=self._credentials.for_caller(caller),
        )
        return OneAnswer(call, SERVICE)

    def stream(self, request: pb.StreamResponseRequest, caller: Caller) -> ResponseStreamCall:
        """Have the model answer, event by event."""
        call = self._stub.StreamResponse(
            request,
            timeout=self._transfer_timeout_s,
            metadata=self._credentials.for_caller(caller),
        )
        return OneCall(call, SERVICE)

    def watch(self, request: pb.WatchResponseRequest, caller: Caller) -> WatchCall:
        """Follow a response that is kept."""
        call = self._stub.WatchResponse(
            request,
            timeout=self._transfer_timeout_s,
            metadata=self._credentials.for_caller(caller),
        )
        return OneCall(call, SERVICE)

    async def get(self, request: pb.GetResponseRequest, caller: Caller) -> response_pb2.Response:
        """One response."""
        return (await self._ask(self._stub.GetResponse, request, caller)).response

    async def delete(self, response_id: str, caller: Caller) -> None:
        """Forget a response."""
        request = pb.DeleteResponseRequest(response_id=response_id)
        await self._ask(self._stub.DeleteResponse, request, caller)

    async def cancel(self, response_id: str, caller: Caller) -> response_pb2.Response:
        """Give a response up."""
        request = pb.CancelResponseRequest(response_id=response_id)
        return (await self._ask(self._stub.CancelResponse, request, caller)).response

    async def input_items(
        self, request: pb.ListInputItemsRequest, caller: Caller
    ) -> pb.ListInputItemsResponse:
        """A page of what a response was asked."""
        return await self._ask(self._stub.ListInputItems, request, caller)

    async def count_input(self, new_response: response_pb2.NewResponse, caller: Caller) -> int:
        """The length of the prompt that a response would have."""
        request = pb.CountInputTokensRequest(new_response=new_response)
        return (await self._ask(self._stub.CountInputTokens, request, caller)).input_tokens

    async def prepare(
        self, new_response: response_pb2.NewResponse, caller: Caller
    ) -> pb.PrepareResponseResponse:
        """Have the prompt that a response would have read."""
        request = pb.PrepareResponseRequest(new_response=new_response)
        return await self._ask(
            self._stub.PrepareResponse, request, caller, timeout_s=self._transfer_timeout_s
        )

    def compact(
        self, request: pb.CompactResponseRequest, caller: Caller
    ) -> OneAnswer[pb.CompactResponseResponse]:
        """Have what was said summed up."""
        call = self._stub.CompactResponse(
            request,
            timeout=self._transfer_timeout_s,
            metadata=self._credentials.for_caller(caller),
        )
        return OneAnswer(call, SERVICE)
