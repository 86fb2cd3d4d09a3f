"""A caller of ResponseService, and a control service whose model follows scripts."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corral.control.v1 import item_pb2, response_event_pb2, response_pb2
from corral.control.v1 import response_service_pb2 as pb
from corral.control.v1.response_service_pb2_grpc import ResponseServiceStub

from control_svc.deps import ModelParts
from control_svc.inference.models import ResolvedModel
from control_svc.inference.turns import TextPart, TurnClient, TurnRequest
from svc_kit.rpc.client import translate_errors
from tests.support.control import Client, RunningControl, a_control
from tests.support.conversation_client import a_message
from tests.support.scripted_turns import Script, ScriptedTurns, calls, says

if TYPE_CHECKING:  # stubs over an aio channel have names for type checkers only
    from corral.control.v1.response_service_pb2_grpc import ResponseServiceAsyncStub


@dataclass
class ScriptedModels:
    """`Models` and `TokenCounter` without a network; a token is a word."""

    counted: list[TurnRequest] = field(default_factory=list)

    async def resolve(self, project: str, model: str, options: bytes) -> ResolvedModel:
        """Every model is there."""
        return ResolvedModel(model or "scripted", options, None)

    async def count(self, request: TurnRequest) -> int:
        """The words."""
        self.counted.append(request)
        return words_of(request)


def a_model(turns: TurnClient) -> ModelParts:
    """An inference service whose turns follow scripts."""
    models = ScriptedModels()
    return ModelParts(turns, models, models)


def a_small_control(
    folder: Path, database_url: str | None, turns: TurnClient | None = None, **options: Any
) -> AbstractAsyncContextManager[RunningControl]:
    """A control service with small limits, whose model says a word or calls the first tool, unless
    it is another one."""
    files = {"file_bytes": 4000, "batch_bytes": 2000, "upload_bytes": 8000, "part_bytes": 3000}
    model = a_model(turns or ScriptedTurns(answer_or_call))
    return a_control(
        folder, database_url, model=model, files=files, embedding_model="meaning", **options
    )


def answer_or_call(request: TurnRequest) -> Script:
    """A word; a call of the first tool, where there are tools."""
    return calls(request.tools[0].name, "{}") if request.tools else says("Hello")


def words_of(request: TurnRequest) -> int:
    """How many words a turn's prompt has."""
    texts = (part.text for m in request.messages for part in m.parts if isinstance(part, TextPart))
    return sum(len(text.split()) for text in texts)


def asked(*items: item_pb2.Item | str, **fields: Any) -> response_pb2.NewResponse:
    """A request; texts are a user's messages, fields those of the settings or of the request."""
    named = {
        name: fields.pop(name)
        for name in ("previous_response_id", "conversation_id")
        if name in fields
    }
    given = [a_message(item) if isinstance(item, str) else item for item in items]
    return response_pb2.NewResponse(
        settings=response_pb2.ResponseSettings(**fields), input=given, **named
    )


@dataclass(frozen=True)
class ResponseClient:
    """The service as one project's caller sees it; failures are our errors."""

    client: Client

    @property
    def stub(self) -> "ResponseServiceAsyncStub":
        """The service, bare."""
        return ResponseServiceStub(self.client.channel)

    async def create(
        self, *items: item_pb2.Item | str, request_id: str = "", **fields: Any
    ) -> response_pb2.Response:
        """A response that has ended, or runs in the background."""
        request = pb.CreateResponseRequest(
            new_response=asked(*items, **fields), request_id=request_id
        )
        with translate_errors():
            answer = await self.stub.CreateResponse(request, metadata=self.client.metadata)
        return answer.response

    async def stream(
        self, *items: item_pb2.Item | str, **fields: Any
    ) -> AsyncGenerator[response_event_pb2.ResponseEvent, None]:
        """What happens."""
        request = pb.StreamResponseRequest(new_response=asked(*items, **fields))
        with translate_errors():
            call = self.stub.StreamResponse(request, metadata=self.client.metadata)
            async for message in call:
                yield message.event

    async def watch(
        self, response_id: str, after: int | None = None
    ) -> AsyncIterator[response_event_pb2.ResponseEvent]:
        """What has happened and happens."""
        request = pb.WatchResponseRequest(response_id=response_id, after=after)
        with translate_errors():
            call = self.stub.WatchResponse(request, metadata=self.client.metadata)
            async for message in call:
                yield message.event

    async def get(
        self, response_id: str, *include: response_pb2.ResponseInclude
    ) -> response_pb2.Response:
        """One response."""
        request = pb.GetResponseRequest(response_id=response_id, include=include)
        with translate_errors():
            answer = await self.stub.GetResponse(request, metadata=self.client.metadata)
        return answer.response

    async def delete(self, response_id: str) -> None:
        """Forget one."""
        with translate_errors():
            await self.stub.DeleteResponse(
                pb.DeleteResponseRequest(response_id=response_id), metadata=self.client.metadata
            )

    async def cancel(self, response_id: str) -> response_pb2.Response:
        """Give one up."""
        with translate_errors():
            answer = await self.stub.CancelResponse(
                pb.CancelResponseRequest(response_id=response_id), metadata=self.client.metadata
            )
        return answer.response

    async def input_items(self, response_id: str, **page: Any) -> pb.ListInputItemsResponse:
        """A page of what one was asked."""
        request = pb.ListInputItemsRequest(response_id=response_id, **page)
        with translate_errors():
            return await self.stub.ListInputItems(request, metadata=self.client.metadata)

    async def count(self, *items: item_pb2.Item | str, **fields: Any) -> int:
        """The tokens of a prompt."""
        request = pb.CountInputTokensRequest(new_response=asked(*items, **fields))
        with translate_errors():
            answer = await self.stub.CountInputTokens(request, metadata=self.client.metadata)
        return answer.input_tokens

    async def prepare(
        self, *items: item_pb2.Item | str, **fields: Any
    ) -> pb.PrepareResponseResponse:
        """Have a prompt read."""
        request = pb.PrepareResponseRequest(new_response=asked(*items, **fields))
        with translate_errors():
            return await self.stub.PrepareResponse(request, metadata=self.client.metadata)

    async def compact(
        self, *items: item_pb2.Item | str, **fields: Any
    ) -> pb.CompactResponseResponse:
        """A summary."""
        given = [a_message(item) if isinstance(item, str) else item for item in items]
        request = pb.CompactResponseRequest(input=given, **fields)
        with translate_errors():
            return await self.stub.CompactResponse(request, metadata=self.client.metadata)


def an_output(call_id: str, text: str) -> item_pb2.Item:
    """What a function gave."""
    parts = [item_pb2.ItemPart(text=item_pb2.TextPart(text=text))]
    return item_pb2.Item(
        function_call_output=item_pb2.ToolOutputItem(call_id=call_id, output=parts)
    )


def text_of(response: response_pb2.Response) -> str:
    """All text of an answer."""
    return "".join(part.text.text for item in response.output for part in item.message.parts)


def names(events: list[response_event_pb2.ResponseEvent]) -> list[str]:
    """What the events are, equal ones in a row once."""
    found = [str(event.WhichOneof("event")) for event in events]
    return [name for place, name in enumerate(found) if not place or found[place - 1] != name]
