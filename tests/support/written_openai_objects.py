"""What is written of OpenAI's stored objects and of their events, where it is not one message."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import orjson
from corral.control.v1 import (
    adapter_pb2,
    item_pb2,
    message_pb2,
    response_event_pb2,
    response_pb2,
    run_pb2,
    run_service_pb2,
    thread_pb2,
    vector_store_search_pb2,
)

from dialects.openai.assistants import run_events
from dialects.openai.assistants.objects import Assistant, Thread, ThreadMessage
from dialects.openai.assistants.run_objects import Run, RunStep
from dialects.openai.resources import adapters, vector_stores
from dialects.openai.resources.batches import Batch
from dialects.openai.resources.files import File
from dialects.openai.responses import events
from dialects.openai.responses.conversations import Conversation
from dialects.openai.responses.event_data import LIFECYCLE
from dialects.openai.responses.objects import InputTokens, McpServer, ResponseResource
from dialects.openai.responses.output_items import Item
from dialects.openai.shared.composed_shapes import page_shape
from dialects.openai.shared.objects import Deleted, deleted_object, list_object
from dialects.shared.wire import WRITTEN
from tests.support.call_frames import example_errors, read_frames
from tests.support.message_examples import TEXT, examples

MANY: Final = (item_pb2.ItemLogprob,)
"""Messages in others of which there are too many examples; they are empty."""


def written(shape: Any) -> list[Any]:
    """What is written of examples of the message of a type, without values that are never sent."""
    message, write = WRITTEN[shape]
    return _sent(map(write, examples(message, MANY)))


def _sent(values: Iterable[Any]) -> list[Any]:
    texts = dict.fromkeys(map(orjson.dumps, values))
    return [orjson.loads(text) for text in texts if b'"unspecified"' not in text]


def _pages(shape: Any) -> Iterator[Any]:
    for objects in (written(shape)[:3], []):
        yield list_object(objects, lambda each: each, TEXT)


def _response_events() -> Iterator[Any]:
    for event in examples(response_event_pb2.ResponseEvent, (*MANY, response_pb2.Response)):
        kind = event.WhichOneof("event") or ""
        if kind in LIFECYCLE:
            getattr(event, kind).state = response_pb2.Response.STATE_COMPLETED
        yield events.event_object(event)


def _thread_events() -> Iterator[Any]:
    resources = (run_pb2.Run, run_pb2.RunStep, message_pb2.Message, thread_pb2.Thread)
    for event in examples(run_service_pb2.WatchRunResponse, (*MANY, *resources)):
        match event.event.WhichOneof("event"):
            case "run_changed":
                event.event.run_changed.run.state = run_pb2.Run.STATE_QUEUED
            case "step_changed":
                event.event.step_changed.step.state = run_pb2.RunStep.STATE_IN_PROGRESS
            case "message_changed":
                message = event.event.message_changed.message
                message.state = message_pb2.Message.STATE_COMPLETED
                message.role = item_pb2.ITEM_ROLE_ASSISTANT
        yield from read_frames(run_events.event_frame(event, with_results=True) or b"")
    yield from read_frames(run_events.DONE)
    for error in example_errors():
        yield from read_frames(run_events.error_frame(error))


OPENAI_OBJECTS: Final[Mapping[Any, Callable[[], Iterable[Any]]]] = {
    Deleted: lambda: [deleted_object(TEXT, TEXT)],
    InputTokens: lambda: [{"object": "response.input_tokens", "input_tokens": 1}],
    adapters.Success: lambda: [{"success": True}],
    adapters.AdapterNames: lambda: [{"object": "list", "loras": [TEXT]}],
    adapters.AdapterStatus: lambda: [{"name": TEXT, "status": "registered"}],
    adapters.LoraScales: lambda: [adapters.llama_server_list(examples(adapter_pb2.Adapter))],
    vector_stores.VectorStoreFileContent: lambda: [vector_stores.content_page([TEXT])],
    vector_stores.VectorStoreSearchResults: lambda: [
        vector_stores.search_page([TEXT], examples(vector_store_search_pb2.VectorStoreSearchHit))
    ],
    events.ResponseEvent: lambda: [
        *_sent(_response_events()),
        *(events.error_event(error, 1) for error in example_errors()),
    ],
    run_events.ThreadEvent: lambda: _sent(_thread_events()),
    page_shape(ResponseResource, "ResponseList"): partial(_pages, ResponseResource),
    **{
        page_shape(shape): partial(_pages, shape)
        for shape in (
            *(Assistant, Thread, ThreadMessage, Run, RunStep, Conversation, Item),
            *(adapters.Adapter, Batch, File, McpServer),
            *(vector_stores.VectorStore, vector_stores.VectorStoreFile),
        )
    },
}
"""The objects of each type, and the events of each stream."""
