"""A response service without a model or a database: it answers with the last text it was given."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
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
from svc_kit.rpc.server import RpcServer, Service
from tests.support.loopback_gateway import LOOPBACK

Context = grpc.aio.ServicerContext[Any, Any]
SERVICE = "corral.control.v1.ResponseService"


@dataclass
class FakeResponses(rpc.ResponseServiceServicer):
    """Answers in words of one character, and keeps what is to be stored."""

    asked: list[response_pb2.NewResponse] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """What requests were called by their callers."""
    stored: dict[str, response_pb2.Response] = field(default_factory=dict)
    refusal: DomainError | None = None
    failure: DomainError | None = None
    """Raised after the first piece of text."""
    nonsense: bool = False
    """Sends an event that says nothing."""
    hold: asyncio.Event | None = None
    """Awaited after the first piece of text."""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    told: int = 0
    """Events of all streams."""
    abandoned: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, asked: response_pb2.NewResponse) -> response_pb2.Response:
        """A response that is under way. Raises the refusal."""
        self.asked.append(asked)
        previous = asked.previous_response_id
        if self.refusal is not None:
            raise self.refusal
        if previous and previous not in self.stored:
            raise InvalidField(field="previous_response_id", problem=f"'{previous}' is not there")
        response = response_pb2.Response(
            id=f"resp_{len(self.asked)}",
            state=response_pb2.Response.STATE_IN_PROGRESS,
            settings=asked.settings,
            previous_response_id=previous,
            conversation_id=asked.conversation_id,
        )
        response.create_time.FromSeconds(1000)
        return response

    async def CreateResponse(
        self, request: pb.CreateResponseRequest, context: Context
    ) -> pb.CreateResponseResponse:
        """The whole answer."""
        self.names.append(request.request_id)
        events = [event async for event in self._events(request.new_response)]
        return pb.CreateResponseResponse(response=events[-1].completed)

    async def StreamResponse(
        self, request: pb.StreamResponseRequest, context: Context
    ) -> AsyncIterator[pb.StreamResponseResponse]:
        """The answer's events."""
        if self.nonsense:
            yield pb.StreamResponseResponse()
        try:
            async for event in self._events(request.new_response):
                yield pb.StreamResponseResponse(event=event)
                self.told += 1
        finally:
            self.abandoned.set()

    async def WatchResponse(
        self, request: pb.WatchResponseRequest, context: Context
    ) -> AsyncIterator[pb.WatchResponseResponse]:
        """The events of a stored one."""
        events = list(turn(self.stored[request.response_id]))
        first = request.after + 1 if request.HasField("after") else 0
        for event in numbered(events)[first:]:
            yield pb.WatchResponseResponse(event=event)

    async def GetResponse(
        self, request: pb.GetResponseRequest, context: Context
    ) -> pb.GetResponseResponse:
        """A stored one."""
        return pb.GetResponseResponse(response=self.stored[request.response_id])

    async def DeleteResponse(
        self, request: pb.DeleteResponseRequest, context: Context
    ) -> pb.DeleteResponseResponse:
        """Forget it."""
        del self.stored[request.response_id]
        return pb.DeleteResponseResponse()

    async def CancelResponse(
        self, request: pb.CancelResponseRequest, context: Context
    ) -> pb.CancelResponseResponse:
        """A stored one as it is."""
        return pb.CancelResponseResponse(response=self.stored[request.response_id])

    async def ListInputItems(
        self, request: pb.ListInputItemsRequest, context: Context
    ) -> pb.ListInputItemsResponse:
        """The last input."""
        items = self.asked[-1].input
        return pb.ListInputItemsResponse(items=items, next_page_token="more")

    async def CountInputTokens(
        self, request: pb.CountInputTokensRequest, context: Context
    ) -> pb.CountInputTokensResponse:
        """One for each item."""
        self.begin(request.new_response)
        return pb.CountInputTokensResponse(input_tokens=len(request.new_response.input))

    async def PrepareResponse(
        self, request: pb.PrepareResponseRequest, context: Context
    ) -> pb.PrepareResponseResponse:
        """One for each item."""
        self.begin(request.new_response)
        return pb.PrepareResponseResponse(input_tokens=len(request.new_response.input))

    async def CompactResponse(
        self, request: pb.CompactResponseRequest, context: Context
    ) -> pb.CompactResponseResponse:
        """The input, and an item for the rest."""
        compaction = item_pb2.Item(id="cmp_1", compaction=item_pb2.CompactionItem(sealed="s"))
        return pb.CompactResponseResponse(id="resp_c", output=[*request.input, compaction])

    async def _events(
        self, asked: response_pb2.NewResponse
    ) -> AsyncIterator[response_event_pb2.ResponseEvent]:
        response = self.begin(asked)
        text = answer_to(asked.input)
        done = completed(response, text)
        if not asked.settings.HasField("store") or asked.settings.store:
            self.stored[response.id] = done
        for event in numbered(list(turn(done))):
            yield event
            if event.WhichOneof("event") == "output_text_delta":
                self.begun.set()
                if self.failure is not None:
                    raise self.failure
                if self.hold is not None:
                    await self.hold.wait()


def answer_to(items: Sequence[item_pb2.Item]) -> str:
    """All texts of the input, one after the other."""
    return "+".join("".join(part.text.text for part in item.message.parts) for item in items)


def completed(response: response_pb2.Response, text: str) -> response_pb2.Response:
    """The response once its text is there."""
    done = response_pb2.Response()
    done.CopyFrom(response)
    done.state = response_pb2.Response.STATE_COMPLETED
    done.complete_time.FromSeconds(1001)
    done.usage.input_tokens, done.usage.output_tokens = 3, len(text)
    done.output.add(
        id=f"msg_{response.id}",
        status=item_pb2.Item.STATUS_COMPLETED,
        message=item_pb2.MessageItem(
            role=item_pb2.ITEM_ROLE_ASSISTANT,
            parts=[item_pb2.ItemPart(text=item_pb2.TextPart(text=text))],
        ),
    )
    return done


def turn(done: response_pb2.Response) -> Iterator[response_event_pb2.ResponseEvent]:
    """The events of a turn of one text, without numbers."""
    Event = response_event_pb2.ResponseEvent
    begun = response_pb2.Response()
    begun.CopyFrom(done)
    begun.state = response_pb2.Response.STATE_IN_PROGRESS
    for name in ("output", "usage", "complete_time"):
        begun.ClearField(name)
    (item,) = done.output
    (part,) = item.message.parts
    opened = item_pb2.Item(id=item.id, status=item_pb2.Item.STATUS_IN_PROGRESS)
    opened.message.role = item.message.role
    empty = item_pb2.ItemPart(text=item_pb2.TextPart())
    yield Event(created=begun)
    yield Event(in_progress=begun)
    yield Event(output_item_added={"item": opened})
    yield Event(content_part_added={"item_id": item.id, "part": empty})
    for character in part.text.text:
        yield Event(output_text_delta={"item_id": item.id, "text": character})
    yield Event(output_text_done={"item_id": item.id, "text": part.text.text})
    yield Event(content_part_done={"item_id": item.id, "part": part})
    yield Event(output_item_done={"item": item})
    yield Event(completed=done)


def numbered(
    events: Sequence[response_event_pb2.ResponseEvent],
) -> list[response_event_pb2.ResponseEvent]:
    """The events with their places as numbers."""
    for number, event in enumerate(events):
        event.sequence_number = number
    return list(events)


@asynccontextmanager
async def a_response_service(fake: FakeResponses) -> AsyncIterator[str]:
    """The fake as a gRPC server; where it listens."""
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
