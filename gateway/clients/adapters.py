"""The registry of adapters as the routes see it: typed calls as a caller, with a deadline."""

from typing import Final

import grpc.aio
from corral.control.v1 import adapter_pb2, adapter_service_pb2, listing_pb2
from corral.control.v1.adapter_service_pb2_grpc import AdapterServiceStub
from google.protobuf.duration_pb2 import Duration

from gateway.auth import Caller, Credentials
from gateway.clients.control import SERVICE, UNARY_TIMEOUT_S, ControlCalls
from gateway.upload_call import UploadCall

AdapterSending = UploadCall[
    adapter_service_pb2.CreateAdapterRequest, adapter_service_pb2.CreateAdapterResponse
]
_MOST: Final = 1000


class AdapterClient(ControlCalls):
    """The registry over one channel."""

    def __init__(
        self, channel: grpc.aio.Channel, credentials: Credentials, transfer_timeout_s: float
    ) -> None:
        super().__init__(credentials, transfer_timeout_s)
        self._stub = AdapterServiceStub(channel)

    def send(self, caller: Caller) -> AdapterSending:
        """Begin a new adapter."""
        metadata = self._credentials.for_caller(caller)
        call = self._stub.CreateAdapter(timeout=self._transfer_timeout_s, metadata=metadata)
        return UploadCall(call, SERVICE)

    async def create(
        self, header: adapter_pb2.AdapterHeader, caller: Caller
    ) -> adapter_pb2.Adapter:
        """Register bytes that are there already."""
        sending = self.send(caller)
        await sending.write(adapter_service_pb2.CreateAdapterRequest(header=header))
        return (await sending.finish()).adapter

    async def get(
        self, adapter: str, caller: Caller, wait: Duration | None = None
    ) -> adapter_pb2.Adapter:
        """One adapter, by id or name; after `wait` for engines that are busy with it."""
        request = adapter_service_pb2.GetAdapterRequest(adapter=adapter, wait=wait)
        timeout_s = UNARY_TIMEOUT_S + (wait.seconds if wait is not None else 0)
        answer = await self._ask(self._stub.GetAdapter, request, caller, timeout_s=timeout_s)
        return answer.adapter

    async def page(
        self, request: adapter_service_pb2.ListAdaptersRequest, caller: Caller
    ) -> adapter_service_pb2.ListAdaptersResponse:
        """A page of adapters."""
        return await self._ask(self._stub.ListAdapters, request, caller)

    async def every(self, caller: Caller) -> list[adapter_pb2.Adapter]:
        """All adapters of the caller's project, oldest first."""
        request = adapter_service_pb2.ListAdaptersRequest(
            page_size=_MOST, order=listing_pb2.LIST_ORDER_OLDEST_FIRST
        )
        found: list[adapter_pb2.Adapter] = []
        while True:
            page = await self.page(request, caller)
            found.extend(page.adapters)
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    async def update(
        self, request: adapter_service_pb2.UpdateAdapterRequest, caller: Caller
    ) -> adapter_pb2.Adapter:
        """Change an adapter."""
        answer = await self._ask(self._stub.UpdateAdapter, request, caller)
        return answer.adapter

    async def retry(self, adapter: str, caller: Caller) -> adapter_pb2.Adapter:
        """Have engines try again what failed."""
        request = adapter_service_pb2.RetryAdapterRequest(adapter=adapter)
        answer = await self._ask(self._stub.RetryAdapter, request, caller)
        return answer.adapter

    async def delete(self, adapter: str, caller: Caller) -> str:
        """Delete an adapter; its id."""
        request = adapter_service_pb2.DeleteAdapterRequest(adapter=adapter)
        answer = await self._ask(self._stub.DeleteAdapter, request, caller)
        return answer.adapter_id
