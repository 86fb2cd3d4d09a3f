"""The RPCs of responses, and the lines of batches for /v1/responses."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from corral.control.v1 import response_pb2
from corral.control.v1 import response_service_pb2 as pb

from control_svc.base.pagination import Page
from control_svc.base.proto import page_request
from control_svc.base.resource import Methods
from control_svc.event_log.model import BEFORE_FIRST, Event
from control_svc.items.input_items import Include
from control_svc.items.proto import includes_from_pb, items_to_pb
from control_svc.jobs.model import JobPriority
from control_svc.limits.buckets import RateLimits
from control_svc.responses.ephemeral import EphemeralResponses
from control_svc.responses.events import CREATED, event_to_pb
from control_svc.responses.model import Response
from control_svc.responses.proto import USAGE, compact_request, new_response, response_to_pb
from control_svc.responses.service import Responses
from dialects.openai.errors import RESPONSE_PARAMS, openai_names
from dialects.openai.responses import requests as response_requests
from dialects.openai.responses.objects import response_object
from svc_kit.errors import OutOfRange, UnsupportedField, UnsupportedValue
from svc_kit.rpc.field_limits import check_limits
from svc_kit.rpc.message_mapper import encode_timestamp


@dataclass(frozen=True)
class ResponseServicer(Methods[Response]):
    """Responses. Each method raises the errors of the operation that it calls."""

    service = pb.DESCRIPTOR.services_by_name["ResponseService"]
    noun, plural = "a response", "responses"

    responses: Responses
    requests: EphemeralResponses
    limits: RateLimits

    def to_message(self, value: Response) -> response_pb2.Response:
        return response_to_pb(value)

    async def CreateResponse(
        self, project: str, request: pb.CreateResponseRequest
    ) -> pb.CreateResponseResponse:
        """Create a response and return it when it has ended."""
        new = new_response(request.new_response, request.request_id)
        response = await self.requests.answer(project, new)
        return pb.CreateResponseResponse(
            response=response_to_pb(response),
            rate_limits=await self.limits.of_caller(response.settings.model),
        )

    async def StreamResponse(
        self, project: str, request: pb.StreamResponseRequest
    ) -> AsyncGenerator[pb.StreamResponseResponse, None]:
        new = new_response(request.new_response, request.request_id)
        groups = self.requests.stream(project, new)
        async with aclosing(_flatten(groups)) as events:
            async for event in events:
                message = pb.StreamResponseResponse(event=event_to_pb(event))
                if message.event.HasField(CREATED):
                    model = message.event.created.settings.model
                    message.rate_limits.extend(await self.limits.of_caller(model))
                yield message

    async def WatchResponse(
        self, project: str, request: pb.WatchResponseRequest
    ) -> AsyncGenerator[pb.WatchResponseResponse | None, None]:
        """Stream the events of a response, past and future."""
        after = request.after if request.HasField("after") else BEFORE_FIRST
        if after < BEFORE_FIRST:
            raise OutOfRange(field="after", value=after, minimum=0)
        groups = self.responses.follow(project, request.response_id, after)
        async with aclosing(groups):
            async for group in groups:
                if not group:
                    yield None
                for event in group:
                    yield pb.WatchResponseResponse(event=event_to_pb(event))

    async def GetResponse(self, project: str, request: pb.GetResponseRequest) -> Response:
        include = includes_from_pb(request.include)
        response = await self.responses.get(project, request.response_id)
        return response.add_include(include)

    async def ListResponses(self, project: str, request: pb.ListResponsesRequest) -> Page[Response]:
        """List the project's responses."""
        return await self.responses.page(project, page_request(request))

    async def DeleteResponse(self, project: str, request: pb.DeleteResponseRequest) -> None:
        await self.responses.delete(project, request.response_id)

    async def CancelResponse(self, project: str, request: pb.CancelResponseRequest) -> Response:
        return await self.responses.cancel(project, request.response_id)

    async def ListInputItems(
        self, project: str, request: pb.ListInputItemsRequest
    ) -> pb.ListInputItemsResponse:
        include = includes_from_pb(request.include)
        page = await self.responses.input_items(project, request.response_id, page_request(request))
        items = items_to_pb(page.items, include)
        return pb.ListInputItemsResponse(items=items, next_page_token=page.next_token)

    async def CountInputTokens(
        self, project: str, request: pb.CountInputTokensRequest
    ) -> pb.CountInputTokensResponse:
        new = new_response(request.new_response)
        count = await self.requests.count(project, new)
        return pb.CountInputTokensResponse(input_tokens=count)

    async def PrepareResponse(
        self, project: str, request: pb.PrepareResponseRequest
    ) -> pb.PrepareResponseResponse:
        """Compute a prompt into the prefix cache."""
        new = new_response(request.new_response)
        usage = await self.requests.prefill(project, new)
        return pb.PrepareResponseResponse(
            input_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens
        )

    async def CompactResponse(
        self, project: str, request: pb.CompactResponseRequest
    ) -> pb.CompactResponseResponse:
        new = compact_request(request)
        compacted = await self.requests.compact(project, new)
        return pb.CompactResponseResponse(
            id=compacted.id,
            create_time=encode_timestamp(compacted.created_at),
            output=items_to_pb(compacted.output, [Include.INPUT_IMAGE_URLS]),
            usage=USAGE.to_message(compacted.usage),
            rate_limits=await self.limits.of_caller(compacted.model),
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
