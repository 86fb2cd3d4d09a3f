"""A client of ResponseService, and a control service with a scripted model."""

import itertools
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corral.control.v1 import item_pb2, response_event_pb2, response_pb2
from corral.control.v1 import response_service_pb2 as pb
from corral.control.v1.response_service_pb2_grpc import ResponseServiceStub

from control_svc.inference.generation_options import GenerationOptions
from control_svc.inference.models import ResolvedModel
from control_svc.inference.slice import ModelParts
from control_svc.inference.turns import TextPart, TurnClient, TurnRequest
from svc_kit.rpc.client import translate_errors
from tests.support.control import Client, RunningControl, run_control
from tests.support.conversation_client import make_message
from tests.support.scripted_turns import Script, ScriptedTurns, call_script, text_script


@dataclass
class ScriptedModels:
    """`Models` and `TokenCounter` without a network. Each word is a token."""

    counted: list[TurnRequest] = field(default_factory=list)

    async def resolve(self, project: str, model: str, options: GenerationOptions) -> ResolvedModel:
        return ResolvedModel(model or "scripted", options, None)

    async def count(self, request: TurnRequest) -> int:
        self.counted.append(request)
        return count_words(request)


def make_model_parts(turns: TurnClient) -> ModelParts:
    models = ScriptedModels()
    return ModelParts(turns, models, models)


def make_small_control(
    folder: Path, database_url: str | None, turns: TurnClient | None = None, **options: Any
) -> AbstractAsyncContextManager[RunningControl]:
    """Run a control service with small limits; the default model is `answer_or_call`."""
    files = {"file_bytes": 4000, "batch_bytes": 2000, "upload_bytes": 8000, "part_bytes": 3000}
    model = make_model_parts(turns or ScriptedTurns(answer_or_call))
    return run_control(
        folder, database_url, model=model, files=files, embedding_model="meaning", **options
    )


def answer_or_call(request: TurnRequest) -> Script:
    """Call the first tool, if there is one; otherwise answer "Hello"."""
    return call_script(request.tools[0].name, "{}") if request.tools else text_script("Hello")


def count_words(request: TurnRequest) -> int:
    texts = (part.text for m in request.messages for part in m.parts if isinstance(part, TextPart))
    return sum(len(text.split()) for text in texts)


def new_response_message(*items: item_pb2.Item | str, **fields: Any) -> response_pb2.NewResponse:
    """Build a request. Texts become user messages; `fields` are its fields or settings."""
    references = {
        name: fields.pop(name)
        for name in ("previous_response_id", "conversation_id")
        if name in fields
    }
    input_items = [make_message(item) if isinstance(item, str) else item for item in items]
    return response_pb2.NewResponse(
        settings=response_pb2.ResponseSettings(**fields), input=input_items, **references
    )


class ResponseClient:
    """ResponseService for one project. Raises DomainErrors."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.stub = ResponseServiceStub(client.channel)

    async def create(
        self, *items: item_pb2.Item | str, request_id: str = "", **fields: Any
    ) -> response_pb2.Response:
        """Create a response and return it when it has ended; at once with `background`."""
        request = pb.CreateResponseRequest(
            new_response=new_response_message(*items, **fields), request_id=request_id
        )
        return (await self.client.call(self.stub.CreateResponse, request)).response

    async def stream(
        self, *items: item_pb2.Item | str, **fields: Any
    ) -> AsyncGenerator[response_event_pb2.ResponseEvent, None]:
        request = pb.StreamResponseRequest(new_response=new_response_message(*items, **fields))
        with translate_errors():
            call = self.stub.StreamResponse(request, metadata=self.client.metadata)
            async for message in call:
                yield message.event

    async def watch(
        self, response_id: str, after: int | None = None
    ) -> AsyncIterator[response_event_pb2.ResponseEvent]:
        """Yield the past and future events of a response."""
        request = pb.WatchResponseRequest(response_id=response_id, after=after)
        with translate_errors():
            call = self.stub.WatchResponse(request, metadata=self.client.metadata)
            async for message in call:
                yield message.event

    async def get(
        self, response_id: str, *include: response_pb2.ResponseInclude
    ) -> response_pb2.Response:
        request = pb.GetResponseRequest(response_id=response_id, include=include)
        return (await self.client.call(self.stub.GetResponse, request)).response

    async def delete(self, response_id: str) -> None:
        request = pb.DeleteResponseRequest(response_id=response_id)
        await self.client.call(self.stub.DeleteResponse, request)

    async def cancel(self, response_id: str) -> response_pb2.Response:
        request = pb.CancelResponseRequest(response_id=response_id)
        return (await self.client.call(self.stub.CancelResponse, request)).response

    async def input_items(self, response_id: str, **page: Any) -> pb.ListInputItemsResponse:
        request = pb.ListInputItemsRequest(response_id=response_id, **page)
        return await self.client.call(self.stub.ListInputItems, request)

    async def count(self, *items: item_pb2.Item | str, **fields: Any) -> int:
        request = pb.CountInputTokensRequest(new_response=new_response_message(*items, **fields))
        return (await self.client.call(self.stub.CountInputTokens, request)).input_tokens

    async def prepare(
        self, *items: item_pb2.Item | str, **fields: Any
    ) -> pb.PrepareResponseResponse:
        """Compute a prompt into the prefix cache."""
        request = pb.PrepareResponseRequest(new_response=new_response_message(*items, **fields))
        return await self.client.call(self.stub.PrepareResponse, request)

    async def compact(
        self, *items: item_pb2.Item | str, **fields: Any
    ) -> pb.CompactResponseResponse:
        input_items = [make_message(item) if isinstance(item, str) else item for item in items]
        request = pb.CompactResponseRequest(input=input_items, **fields)
        return await self.client.call(self.stub.CompactResponse, request)


def function_output(call_id: str, text: str) -> item_pb2.Item:
    parts = [item_pb2.ItemPart(text=item_pb2.TextPart(text=text))]
    return item_pb2.Item(
        function_call_output=item_pb2.ToolOutputItem(call_id=call_id, output=parts)
    )


def output_text(response: response_pb2.Response) -> str:
    return "".join(part.text.text for item in response.output for part in item.message.parts)


def event_names(events: list[response_event_pb2.ResponseEvent]) -> list[str]:
    """Return the types of events, without consecutive duplicates."""
    types = [str(event.WhichOneof("event")) for event in events]
    return [name for name, _ in itertools.groupby(types)]
