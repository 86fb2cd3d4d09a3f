"""A fake response service without a model or a database. It answers with the texts of the input."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
from corral.control.v1 import item_pb2, response_event_pb2, response_pb2
from corral.control.v1 import response_service_pb2 as pb
from corral.control.v1 import response_service_pb2_grpc as rpc
from prometheus_client import CollectorRegistry

from svc_kit.auth.authenticator import build_authenticator
from svc_kit.errors import DomainError, InvalidField
from svc_kit.rpc.interceptors import accept_call
from svc_kit.rpc.server import RpcServer, Service
from tests.support.loopback_gateway import LOOPBACK

Context = grpc.aio.ServicerContext[Any, Any]
SERVICE = "corral.control.v1.ResponseService"


@dataclass
class FakeResponses(rpc.ResponseServiceServicer):
    """The servicer. It streams one character per delta."""

    requests: list[response_pb2.NewResponse] = field(default_factory=list)
    request_ids: list[str] = field(default_factory=list)
    stored: dict[str, response_pb2.Response] = field(default_factory=dict)
    refusal: DomainError | None = None
    """Raised before the first event."""
    failure: DomainError | None = None
    """Raised after the first delta."""
    ignored: Sequence[str] = ()
    """The `ignored_parameters` of responses."""
    sends_empty_event: bool = False
    gate: asyncio.Event | None = None
    """Awaited after each delta, before the events of a stored response, and by a count."""
    started: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with the first delta, or by a count that is held."""
    num_events: int = 0
    """Events of all streams."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a stream ends."""

    def begin(self, request: response_pb2.NewResponse) -> response_pb2.Response:
        """Start a response. Raises the refusal."""
        self.requests.append(request)
        previous = request.previous_response_id
        if self.refusal is not None:
            raise self.refusal
        if previous and previous not in self.stored:
            raise InvalidField(field="previous_response_id", problem=f"'{previous}' is not there")
        response = response_pb2.Response(
            id=f"resp_{len(self.requests)}",
            state=response_pb2.Response.STATE_IN_PROGRESS,
            settings=request.settings,
            previous_response_id=previous,
            conversation_id=request.conversation_id,
            ignored_parameters=self.ignored,
        )
        response.create_time.FromSeconds(1000)
        return response

    async def CreateResponse(
        self, request: pb.CreateResponseRequest, context: Context
    ) -> pb.CreateResponseResponse:
        self.request_ids.append(request.request_id)
        events = [event async for event in self._events(request.new_response)]
        return pb.CreateResponseResponse(response=events[-1].completed)

    async def StreamResponse(
        self, request: pb.StreamResponseRequest, context: Context
    ) -> AsyncIterator[pb.StreamResponseResponse]:
        if self.sends_empty_event:
            yield pb.StreamResponseResponse()
        try:
            async for event in self._events(request.new_response):
                yield pb.StreamResponseResponse(event=event)
                self.num_events += 1
        finally:
            self.ended.set()

    async def WatchResponse(
        self, request: pb.WatchResponseRequest, context: Context
    ) -> AsyncIterator[pb.WatchResponseResponse]:
        first = request.after + 1 if request.HasField("after") else 0
        await accept_call(context)
        if self.gate is not None:
            await self.gate.wait()
        for event in turn_events(self.stored[request.response_id])[first:]:
            yield pb.WatchResponseResponse(event=event)

    async def GetResponse(
        self, request: pb.GetResponseRequest, context: Context
    ) -> pb.GetResponseResponse:
        return pb.GetResponseResponse(response=self.stored[request.response_id])

    async def DeleteResponse(
        self, request: pb.DeleteResponseRequest, context: Context
    ) -> pb.DeleteResponseResponse:
        del self.stored[request.response_id]
        return pb.DeleteResponseResponse()

    async def CancelResponse(
        self, request: pb.CancelResponseRequest, context: Context
    ) -> pb.CancelResponseResponse:
        return pb.CancelResponseResponse(response=self.stored[request.response_id])

    async def ListInputItems(
        self, request: pb.ListInputItemsRequest, context: Context
    ) -> pb.ListInputItemsResponse:
        items = self.requests[-1].input
        return pb.ListInputItemsResponse(items=items, next_page_token="more")

    async def CountInputTokens(
        self, request: pb.CountInputTokensRequest, context: Context
    ) -> pb.CountInputTokensResponse:
        """Count one token per item."""
        self.begin(request.new_response)
        if self.gate is not None:
            self.started.set()
            try:
                await self.gate.wait()
            finally:
                self.ended.set()
        return pb.CountInputTokensResponse(input_tokens=len(request.new_response.input))

    async def PrepareResponse(
        self, request: pb.PrepareResponseRequest, context: Context
    ) -> pb.PrepareResponseResponse:
        """Count one token per item."""
        self.begin(request.new_response)
        return pb.PrepareResponseResponse(input_tokens=len(request.new_response.input))

    async def CompactResponse(
        self, request: pb.CompactResponseRequest, context: Context
    ) -> pb.CompactResponseResponse:
        compaction = item_pb2.Item(id="cmp_1", compaction=item_pb2.CompactionItem(sealed="s"))
        return pb.CompactResponseResponse(id="resp_c", output=[*request.input, compaction])

    async def ListMcpServers(
        self, request: pb.ListMcpServersRequest, context: Context
    ) -> pb.ListMcpServersResponse:
        return pb.ListMcpServersResponse(mcp_servers=[pb.McpServer(id="shop")])

    async def _events(
        self, request: response_pb2.NewResponse
    ) -> AsyncIterator[response_event_pb2.ResponseEvent]:
        response = complete(self.begin(request), join_texts(request.input))
        if not request.settings.HasField("store") or request.settings.store:
            self.stored[response.id] = response
        for event in turn_events(response):
            yield event
            if event.WhichOneof("event") == "output_text_delta":
                self.started.set()
                if self.failure is not None:
                    raise self.failure
                if self.gate is not None:
                    await self.gate.wait()


def join_texts(items: Sequence[item_pb2.Item]) -> str:
    return "+".join("".join(part.text.text for part in item.message.parts) for item in items)


def complete(response: response_pb2.Response, text: str) -> response_pb2.Response:
    response.state = response_pb2.Response.STATE_COMPLETED
    response.complete_time.FromSeconds(1001)
    response.usage.input_tokens, response.usage.output_tokens = 3, len(text)
    response.output.add(
        id=f"msg_{response.id}",
        status=item_pb2.Item.STATUS_COMPLETED,
        message=item_pb2.MessageItem(
            role=item_pb2.ITEM_ROLE_ASSISTANT,
            parts=[item_pb2.ItemPart(text=item_pb2.TextPart(text=text))],
        ),
    )
    return response


def turn_events(response: response_pb2.Response) -> list[response_event_pb2.ResponseEvent]:
    Event = response_event_pb2.ResponseEvent
    created = response_pb2.Response()
    created.CopyFrom(response)
    created.state = response_pb2.Response.STATE_IN_PROGRESS
    for name in ("output", "usage", "complete_time"):
        created.ClearField(name)
    (item,) = response.output
    (part,) = item.message.parts
    added = item_pb2.Item(id=item.id, status=item_pb2.Item.STATUS_IN_PROGRESS)
    added.message.role = item.message.role
    empty = item_pb2.ItemPart(text=item_pb2.TextPart())
    events = [
        Event(created=created),
        Event(in_progress=created),
        Event(output_item_added={"item": added}),
        Event(content_part_added={"item_id": item.id, "part": empty}),
        *(
            Event(output_text_delta={"item_id": item.id, "text": character})
            for character in part.text.text
        ),
        Event(output_text_done={"item_id": item.id, "text": part.text.text}),
        Event(content_part_done={"item_id": item.id, "part": part}),
        Event(output_item_done={"item": item}),
        Event(completed=response),
    ]
    for number, event in enumerate(events):
        event.sequence_number = number
    return events


@asynccontextmanager
async def run_response_service(fake: FakeResponses) -> AsyncIterator[str]:
    """Run the fake as a gRPC server. Yields its address."""
    server = RpcServer(
        [Service(rpc.add_ResponseServiceServicer_to_server, fake, SERVICE)],
        listen=LOOPBACK,
        authenticator=build_authenticator(listen=LOOPBACK, keys=()),
        registry=CollectorRegistry(),
    )
    await server.start()
    server.set_serving(True)
    try:
        yield str(server.address)
    finally:
        await server.drain(0)
