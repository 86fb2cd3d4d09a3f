"""The gRPC servicer of responses, and the lines of batches for /v1/responses."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from corral.control.v1 import response_service_pb2 as pb
from corral.control.v1 import response_service_pb2_grpc as rpc

from control_svc.base.proto import Context, caller_project, page_request
from control_svc.event_log.model import BEFORE_FIRST, Event
from control_svc.items.input_items import Include
from control_svc.items.proto import includes_from_pb, items_to_pb
from control_svc.jobs.model import JobPriority
from control_svc.limits.buckets import RateLimits
from control_svc.responses.ephemeral import EphemeralResponses
from control_svc.responses.events import CREATED, event_to_pb
from control_svc.responses.proto import USAGE, compact_request, new_response, response_to_pb
from control_svc.responses.service import Responses
from dialects.openai.errors import RESPONSE_PARAMS, openai_names
from dialects.openai.responses import requests as response_requests
from dialects.openai.responses.objects import response_object
from svc_kit.errors import OutOfRange, UnsupportedField, UnsupportedValue
from svc_kit.rpc.field_limits import check_limits
from svc_kit.rpc.interceptors import accept_call
from svc_kit.rpc.message_mapper import encode_timestamp


class ResponseServicer(rpc.ResponseServiceServicer):
    """Responses over gRPC."""

    def __init__(
        self, responses: Responses, requests: EphemeralResponses, limits: RateLimits
    ) -> None:
        self._responses = responses
        self._requests = requests
        self._limits = limits

    async def CreateResponse(
        self, request: pb.CreateResponseRequest, context: Context
    ) -> pb.CreateResponseResponse:
        """Create a response and return it when it has ended."""
        new = new_response(request.new_response, request.request_id)
        response = await self._requests.answer(caller_project(), new)
        return pb.CreateResponseResponse(
            response=response_to_pb(response),
            rate_limits=await self._limits.of_caller(response.settings.model),
        )

    async def StreamResponse(
        self, request: pb.StreamResponseRequest, context: Context
    ) -> AsyncIterator[pb.StreamResponseResponse]:
        """Create a response and stream its events."""
        new = new_response(request.new_response, request.request_id)
        groups = self._requests.stream(caller_project(), new)
        async with aclosing(_flatten(groups)) as events:
            async for event in events:
                message = pb.StreamResponseResponse(event=event_to_pb(event))
                if message.event.HasField(CREATED):
                    model = message.event.created.settings.model
                    message.rate_limits.extend(await self._limits.of_caller(model))
                yield message

    async def WatchResponse(
        self, request: pb.WatchResponseRequest, context: Context
    ) -> AsyncIterator[pb.WatchResponseResponse]:
        """Stream the events of a response, past and future."""
        after = request.after if request.HasField("after") else BEFORE_FIRST
        if after < BEFORE_FIRST:
            raise OutOfRange(field="after", value=after, minimum=0)
        project = caller_project()
        groups = self._responses.follow(project, request.response_id, after)
        async with aclosing(groups):
            async for group in groups:
                if not group:
                    await accept_call(context)
                for event in group:
                    yield pb.WatchResponseResponse(event=event_to_pb(event))

    async def GetResponse(
        self, request: pb.GetResponseRequest, context: Context
    ) -> pb.GetResponseResponse:
        """Get a response."""
        include = includes_from_pb(request.include)
        response = await self._responses.get(caller_project(), request.response_id)
        return pb.GetResponseResponse(response=response_to_pb(response.add_include(include)))

    async def ListResponses(
        self, request: pb.ListResponsesRequest, context: Context
    ) -> pb.ListResponsesResponse:
        """List the project's responses."""
        page = await self._responses.page(caller_project(), page_request(request))
        responses = [response_to_pb(response) for response in page.items]
        return pb.ListResponsesResponse(responses=responses, next_page_token=page.next_token)

    async def DeleteResponse(
        self, request: pb.DeleteResponseRequest, context: Context
    ) -> pb.DeleteResponseResponse:
        """Delete a response."""
        await self._responses.delete(caller_project(), request.response_id)
        return pb.DeleteResponseResponse()

    async def CancelResponse(
        self, request: pb.CancelResponseRequest, context: Context
    ) -> pb.CancelResponseResponse:
        """Cancel a background response."""
        response = await self._responses.cancel(caller_project(), request.response_id)
        return pb.CancelResponseResponse(response=response_to_pb(response))

    async def ListInputItems(
        self, request: pb.ListInputItemsRequest, context: Context
    ) -> pb.ListInputItemsResponse:
        """List the input items of a response."""
        include = includes_from_pb(request.include)
        page = await self._responses.input_items(
            caller_project(), request.response_id, page_request(request)
        )
        items = items_to_pb(page.items, include)
        return pb.ListInputItemsResponse(items=items, next_page_token=page.next_token)

    async def CountInputTokens(
        self, request: pb.CountInputTokensRequest, context: Context
    ) -> pb.CountInputTokensResponse:
        """Count the tokens of a prompt."""
        new = new_response(request.new_response)
        count = await self._requests.count(caller_project(), new)
        return pb.CountInputTokensResponse(input_tokens=count)

    async def PrepareResponse(
        self, request: pb.PrepareResponseRequest, context: Context
    ) -> pb.PrepareResponseResponse:
        """Compute a prompt into the prefix cache."""
        new = new_response(request.new_response)
        usage = await self._requests.prefill(caller_project(), new)
        return pb.PrepareResponseResponse(
            input_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens
        )

    async def CompactResponse(
        self, request: pb.CompactResponseRequest, context: Context
    ) -> pb.CompactResponseResponse:
        """Compact items."""
        new = compact_request(request)
        compacted = await self._requests.compact(caller_project(), new)
        return pb.CompactResponseResponse(
            id=compacted.id,
            create_time=encode_timestamp(compacted.created_at),
            output=items_to_pb(compacted.output, [Include.INPUT_IMAGE_URLS]),
            usage=USAGE.to_message(compacted.usage),
            rate_limits=await self._limits.of_caller(compacted.model),
        )


async def _flatten(groups: AsyncGenerator[Sequence[Event], None]) -> AsyncGenerator[Event, None]:
    async with aclosing(groups):
        async for group in groups:
            for event in group:
                yield event


class ResponseLines:
    """Runs the lines of batches for /v1/responses."""

    def __init__(self, requests: EphemeralResponses) -> None:
        self._requests = requests

    async def answer(self, project: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Run a line and return OpenAI's response object.

        Raises the errors of the HTTP API, and retryable errors.
        """
        body = response_requests.parse_response(fields)
        for name in ("stream", "background"):
            if getattr(body, name):
                raise UnsupportedValue(field=name, value="true")
        if body.conversation is not None:
            raise UnsupportedField(field="conversation")
        with openai_names(RESPONSE_PARAMS):
            request = response_requests.new_response(body)
            for index, tool in enumerate(request.settings.tools):
                # A line may be run again from the start, which would repeat MCP calls.
                if tool.HasField("mcp"):
                    raise UnsupportedValue(field=f"tools[{index}].type", value="mcp")
            request.settings.store = False
            check_limits(request)
            response = await self._requests.answer(
                project, new_response(request), JobPriority.BATCH
            )
        return dict(response_object(response_to_pb(response)))
