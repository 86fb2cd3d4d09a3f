"""Servicer of `ResponseService`: convert, call, convert."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

import grpc
from corral.control.v1 import response_service_pb2 as pb
from corral.control.v1 import response_service_pb2_grpc as rpc

from control_svc.api.convert import is_newest_first, timestamp
from control_svc.api.item_convert import includes_of, items_to_pb
from control_svc.api.response_convert import (
    compact_request,
    new_response,
    response_to_pb,
    usage_to_pb,
)
from control_svc.api.response_event_convert import event_to_pb
from control_svc.domain.listing import DEFAULT_PAGE, PageRequest
from control_svc.domain.streams import BEFORE_FIRST, Event
from control_svc.usecases.answering import Answering
from control_svc.usecases.responses import Responses
from svc_kit.auth import current_principal
from svc_kit.errors import OutOfRange

Context = grpc.aio.ServicerContext[object, object]


class ResponseServicer(rpc.ResponseServiceServicer):
    """Responses over gRPC."""

    def __init__(self, responses: Responses, answering: Answering) -> None:
        self._responses = responses
        self._answering = answering

    async def CreateResponse(
        self, request: pb.CreateResponseRequest, context: Context
    ) -> pb.CreateResponseResponse:
        """Answer, and return what was answered."""
        asked = new_response(request.new_response, request.request_id)
        response = await self._answering.answer(current_principal().project, asked)
        return pb.CreateResponseResponse(response=response_to_pb(response))

    async def StreamResponse(
        self, request: pb.StreamResponseRequest, context: Context
    ) -> AsyncIterator[pb.StreamResponseResponse]:
        """Answer, and tell what happens."""
        asked = new_response(request.new_response, request.request_id)
        telling = self._answering.stream(current_principal().project, asked)
        async with aclosing(_each(telling)) as events:
            async for event in events:
                yield pb.StreamResponseResponse(event=event_to_pb(event))

    async def WatchResponse(
        self, request: pb.WatchResponseRequest, context: Context
    ) -> AsyncIterator[pb.WatchResponseResponse]:
        """Tell what has happened and happens."""
        after = request.after if request.HasField("after") else BEFORE_FIRST
        if after < BEFORE_FIRST:
            raise OutOfRange(field="after", value=after, minimum=0)
        project = current_principal().project
        following = self._responses.follow(project, request.response_id, after)
        async with aclosing(_each(following)) as events:
            async for event in events:
                yield pb.WatchResponseResponse(event=event_to_pb(event))

    async def GetResponse(
        self, request: pb.GetResponseRequest, context: Context
    ) -> pb.GetResponseResponse:
        """Describe a response."""
        include = includes_of(request.include)
        found = await self._responses.get(current_principal().project, request.response_id)
        response = response_to_pb(found.including(include))
        return pb.GetResponseResponse(response=response)

    async def DeleteResponse(
        self, request: pb.DeleteResponseRequest, context: Context
    ) -> pb.DeleteResponseResponse:
        """Forget a response."""
        await self._responses.delete(current_principal().project, request.response_id)
        return pb.DeleteResponseResponse()

    async def CancelResponse(
        self, request: pb.CancelResponseRequest, context: Context
    ) -> pb.CancelResponseResponse:
        """Give a response up."""
        found = await self._responses.cancel(current_principal().project, request.response_id)
        return pb.CancelResponseResponse(response=response_to_pb(found))

    async def ListInputItems(
        self, request: pb.ListInputItemsRequest, context: Context
    ) -> pb.ListInputItemsResponse:
        """List what a response was asked."""
        include = includes_of(request.include)
        asked = PageRequest(
            request.page_size or DEFAULT_PAGE,
            request.page_token,
            request.after,
            is_newest_first(request.order),
        )
        page = await self._responses.input_items(
            current_principal().project, request.response_id, asked
        )
        items = items_to_pb(page.items, include)
        return pb.ListInputItemsResponse(items=items, next_page_token=page.next_token)

    async def CountInputTokens(
        self, request: pb.CountInputTokensRequest, context: Context
    ) -> pb.CountInputTokensResponse:
        """Count the tokens of a prompt."""
        asked = new_response(request.new_response)
        count = await self._answering.count(current_principal().project, asked)
        return pb.CountInputTokensResponse(input_tokens=count)

    async def PrepareResponse(
        self, request: pb.PrepareResponseRequest, context: Context
    ) -> pb.PrepareResponseResponse:
        """Have a prompt read."""
        asked = new_response(request.new_response)
        read = await self._answering.prepare(current_principal().project, asked)
        return pb.PrepareResponseResponse(
            input_tokens=read.prompt_tokens, cached_tokens=read.cached_tokens
        )

    async def CompactResponse(
        self, request: pb.CompactResponseRequest, context: Context
    ) -> pb.CompactResponseResponse:
        """Sum up what was said."""
        asked = compact_request(request)
        compacted = await self._answering.compact(current_principal().project, asked)
        return pb.CompactResponseResponse(
            id=compacted.id,
            create_time=timestamp(compacted.created_at),
            output=items_to_pb(compacted.output, ()),
            usage=usage_to_pb(compacted.usage),
        )


async def _each(groups: AsyncGenerator[Sequence[Event], None]) -> AsyncGenerator[Event, None]:
    async with aclosing(groups) as found:
        async for group in found:
            for event in group:
                yield event
