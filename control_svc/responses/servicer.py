"""The RPCs of responses, the lines of batches for /v1/responses, and the sweeper's step."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from corral.control.v1 import response_pb2
from corral.control.v1 import response_service_pb2 as pb

from control_svc.base.ids import creation_key
from control_svc.base.pagination import PAGE_BYTES
from control_svc.base.proto import page_request
from control_svc.base.resource import MAX_PAGE, Resource
from control_svc.db.cleanup import CleanupStep, Deleted
from control_svc.db.transaction import (
    CrossProjectTransaction,
    Transaction,
    delete_transaction,
    read_transaction,
    write_transaction,
)
from control_svc.event_log.model import BEFORE_FIRST
from control_svc.inference.prefix_cleanup import PrefixCleanup
from control_svc.items.input_items import Include
from control_svc.items.model import INPUT_ITEMS
from control_svc.items.proto import includes_from_pb, items_to_pb
from control_svc.items.queries import TimelineQueries
from control_svc.jobs.model import JobPriority
from control_svc.jobs.queries import JobQueries
from control_svc.limits.buckets import RateLimits
from control_svc.responses.content_cipher import ContentCipher
from control_svc.responses.ephemeral import EphemeralResponses
from control_svc.responses.events import CREATED, event_to_pb
from control_svc.responses.model import NewResponse, Response
from control_svc.responses.proto import USAGE, compact_request, new_response, response_to_pb
from control_svc.responses.queries import ResponseQueries, ResponseSweepQueries
from control_svc.responses.recorder import close_conversation
from control_svc.responses.service import Responses
from control_svc.responses.worker import KIND, end_response
from dialects.openai.errors import RESPONSE_PARAMS, openai_names
from dialects.openai.responses import requests as response_requests
from dialects.openai.responses.objects import response_object
from dialects.shared.parameters import ParameterReport, parameter_report
from svc_kit.errors import InvalidField, OutOfRange, UnsupportedField, UnsupportedValue
from svc_kit.rpc.field_limits import check_limits
from svc_kit.rpc.message_mapper import encode_timestamp

_MAX_SERVERS: Final = 1000


@dataclass(frozen=True)
class ResponseServicer(Resource[Response, NewResponse]):
    """Responses. Lists contain them without their output."""

    service = pb.DESCRIPTOR.services_by_name["ResponseService"]
    noun, plural, queries = "a response", "responses", ResponseQueries

    responses: Responses
    requests: EphemeralResponses
    limits: RateLimits
    cipher: ContentCipher
    prefix_cleanup: PrefixCleanup

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
    ) -> AsyncGenerator[list[pb.StreamResponseResponse], None]:
        new = new_response(request.new_response, request.request_id)
        async with aclosing(self.requests.stream(project, new)) as groups:
            async for group in groups:
                events = list(map(event_to_pb, group))
                messages = [pb.StreamResponseResponse(event=event) for event in events]
                if events[0].HasField(CREATED):
                    limits = await self.limits.of_caller(events[0].created.settings.model)
                    messages[0].rate_limits.extend(limits)
                yield messages

    async def WatchResponse(
        self, project: str, request: pb.WatchResponseRequest
    ) -> AsyncGenerator[list[pb.WatchResponseResponse], None]:
        """Stream the events of a response, past and future."""
        after = request.after if request.HasField("after") else BEFORE_FIRST
        if after < BEFORE_FIRST:
            raise OutOfRange(field="after", value=after, minimum=0)
        async with aclosing(self.responses.follow(project, request.response_id, after)) as groups:
            async for group in groups:
                yield [pb.WatchResponseResponse(event=event_to_pb(each)) for each in group]

    async def GetResponse(self, project: str, request: pb.GetResponseRequest) -> Response:
        include = includes_from_pb(request.include)
        response = await self.responses.get(project, request.response_id)
        return response.add_include(include)

    @delete_transaction
    async def DeleteResponse(self, tx: Transaction, request: pb.DeleteResponseRequest) -> None:
        """Delete a response; cancel it if it is running. Raises ResponseNotFound."""
        queries, response_id = ResponseQueries(tx), request.response_id
        await queries.get(response_id)
        # Lock the row of the job first, as the worker does.
        await JobQueries(tx).request_cancel(KIND, response_id)
        response = await queries.lock(response_id)
        is_running = not response.state.is_final
        if is_running:
            await close_conversation(tx, response)
        start = await queries.start(response_id)
        await queries.delete(response_id)
        if start is not None:
            await self.prefix_cleanup.enqueue(tx, start.object_id, is_running=is_running)

    async def CancelResponse(self, project: str, request: pb.CancelResponseRequest) -> Response:
        """Cancel a background response; one that has ended does not change.

        Raises ResponseNotFound or ResponseNotCancellable.
        """
        await self._cancel(project, request.response_id)
        return await self.responses.get(project, request.response_id)

    @write_transaction
    async def _cancel(self, tx: Transaction, response_id: str) -> None:
        (await ResponseQueries(tx).get(response_id)).check_cancellable()
        await JobQueries(tx).request_cancel(KIND, response_id)
        response = await ResponseQueries(tx).lock(response_id)
        if not response.state.is_final:
            await end_response(tx, response, self.cipher, Response.cancel)

    @read_transaction
    async def ListInputItems(
        self, tx: Transaction, request: pb.ListInputItemsRequest
    ) -> pb.ListInputItemsResponse:
        """List the input items. Raises ResponseNotFound, OutOfRange or InvalidField."""
        include, timeline = includes_from_pb(request.include), request.response_id
        wanted = page_request(request)
        if wanted.after and not creation_key(wanted.after):
            raise InvalidField(field="after", problem="must be the id of an item")
        window = self.tokens.window(wanted, (tx.project, "input items", timeline), MAX_PAGE)
        await ResponseQueries(tx).get(timeline)
        entries = await TimelineQueries(tx).page(timeline, window, INPUT_ITEMS)
        page = window.page([entry.item for entry in entries], PAGE_BYTES)
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
        compacted = await self.requests.compact(project, compact_request(request))
        return pb.CompactResponseResponse(
            id=compacted.id,
            create_time=encode_timestamp(compacted.created_at),
            output=items_to_pb(compacted.output, [Include.INPUT_IMAGE_URLS]),
            usage=compacted.result.usage and USAGE.to_message(compacted.result.usage),
            rate_limits=await self.limits.of_caller(compacted.settings.model),
        )

    async def ListMcpServers(
        self, project: str, request: pb.ListMcpServersRequest
    ) -> pb.ListMcpServersResponse:
        """List the servers of the settings. Raises InvalidField."""
        wanted = page_request(request, _MAX_SERVERS)
        window = self.tokens.window(wanted, (project, "MCP servers"), _MAX_SERVERS)
        labels = sorted(self.responses.factory.tools.servers.labels)
        servers = [pb.McpServer(id=label) for label in labels if label > window.after]
        page = window.page(servers[: window.limit])
        return pb.ListMcpServersResponse(mcp_servers=page.items, next_page_token=page.next_token)


_EXPIRED_PER_BATCH: Final = 50
"""Fewer than of other rows: each is deleted with its items and events."""


def delete_expired_responses(prefix_cleanup: PrefixCleanup) -> CleanupStep:
    """Return the step of the sweeper that deletes expired responses and what is stored for them."""

    async def delete_responses(tx: CrossProjectTransaction, now: datetime) -> Deleted:
        expired = await ResponseSweepQueries(tx).delete_expired(now, _EXPIRED_PER_BATCH)
        for response in expired:
            if response.is_start:
                await prefix_cleanup.enqueue(tx.of(response.project), response.id)
        return Deleted(len(expired))

    return delete_responses


class ResponseLines:
    """Runs the lines of batches for /v1/responses."""

    def __init__(self, requests: EphemeralResponses) -> None:
        self._requests = requests

    async def answer(self, project: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Run a line and return OpenAI's response object.

        Raises the errors of the HTTP API, and retryable errors.
        """
        parameter_report.set(ParameterReport())  # of the line's task
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
