"""What the gateway writes of each kind of response and of event, by the name of its schema."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from corral.control.v1 import (
    adapter_pb2,
    batch_pb2,
    conversation_pb2,
    file_pb2,
    item_pb2,
    message_pb2,
    response_event_pb2,
    response_pb2,
    response_service_pb2,
    run_pb2,
    run_service_pb2,
    thread_pb2,
    upload_service_pb2,
    vector_store_pb2,
    vector_store_search_pb2,
)
from corral.inference.v1 import (
    inference_service_pb2,
    model_pb2,
)
from corral.inference.v1.engine_service_pb2 import WatchModelsResponse
from google.protobuf.message import Message

from dialects.anthropic import message_batches as anthropic_batches
from dialects.anthropic import objects as anthropic
from dialects.anthropic.events import MessageEvents
from dialects.anthropic.message_request import parse_message
from dialects.ollama import errors as ollama_errors
from dialects.ollama import objects as ollama
from dialects.ollama.embeddings import EmbedAnswer, prompt_embedding
from dialects.ollama.events import ChatAnswer, PromptAnswer, loaded
from dialects.ollama.pull import PullProgress
from dialects.openai.assistants import run_objects
from dialects.openai.resources import adapters, batches, files, vector_stores
from dialects.openai.responses import events as response_events
from dialects.openai.responses.conversations import conversation_object
from dialects.openai.responses.objects import compaction_object, response_object
from dialects.openai.responses.output_items import item_object
from dialects.openai.shared.objects import deleted_object, list_object
from tools.response_schemas.examples import TEXT, examples
from tools.response_schemas.shape import reference
from tools.response_schemas.streams import (
    collected,
    example_errors,
    read_frames,
    read_lines,
    streamed,
)

Write = Callable[[Any], Any]
_MESSAGES: Final = [{"role": "user", "content": TEXT}]
_ANTHROPIC: Final = {"model": TEXT, "messages": _MESSAGES, "max_tokens": 1}
_THOUGHTS: Final = {
    **_ANTHROPIC,
    "max_tokens": 2,
    "stop_sequences": [TEXT],
    "thinking": {"type": "adaptive"},
}


def _written(write: Write, message: type[Message]) -> Callable[[], Iterable[Any]]:
    """What a function writes of a message."""
    return lambda: map(write, examples(message))


def _listed(name: str) -> Callable[[], list[Any]]:
    """Lists of what has this schema."""
    data = [{"id": TEXT, **reference(name)}]
    return lambda: [list_object(each, lambda value: value, TEXT) for each in (data, [])]


def _response_events() -> Iterator[Any]:
    events = examples(response_event_pb2.ResponseEvent, opaque=(response_pb2.Response,))
    yield from map(response_events.event_object, events)
    yield from (response_events.error_event(error, 1) for error in example_errors())


def _pull_events() -> Iterator[Any]:
    for response in examples(WatchModelsResponse):
        progress = PullProgress()
        yield from read_lines(b"".join([*progress.frames(response), *progress.final_frames()]))
    yield from map(ollama_errors.error_body, example_errors())


def _thread_events() -> Iterator[Any]:
    resources = (run_pb2.Run, run_pb2.RunStep, message_pb2.Message, thread_pb2.Thread)
    for event in examples(run_service_pb2.WatchRunResponse, opaque=resources):
        if event.event.WhichOneof("event"):
            frame = run_objects.event_frame(event, with_results=True)
            yield from read_frames(frame or b"")
    yield from read_frames(run_objects.DONE)
    yield from (
        each for error in example_errors() for each in read_frames(run_objects.error_frame(error))
    )


def _joined(*sources: Callable[[], Iterable[Any]]) -> Callable[[], Iterator[Any]]:
    return lambda: (value for source in sources for value in source())


def _loaded(output: dict[str, Any]) -> list[Any]:
    return [loaded(TEXT, output, unloads=each) for each in (True, False)]


def _steps() -> Iterator[Any]:
    for step in examples(run_pb2.RunStep):
        yield from (run_objects.step_object(step, with_results=each) for each in (True, False))


def _paged(name: str) -> Callable[[], list[Any]]:
    data = [{"id": TEXT, **reference(name)}]
    return lambda: [anthropic.page_object(each, has_more=bool(each)) for each in (data, [])]


_ANTHROPICS: Final = [parse_message(_ANTHROPIC), parse_message(_THOUGHTS)]
_PROMPT_ANSWERS: Final = [functools.partial(PromptAnswer, TEXT, each) for each in (None, [1])]


OBJECTS: Final[Mapping[str, Callable[[], Iterable[Any]]]] = {
    "Deleted": lambda: [deleted_object(TEXT, TEXT)],
    "Status": lambda: [{"status": TEXT}],
    "Success": lambda: [{"success": True}],
    "AdapterNames": lambda: [{"object": "list", "loras": [TEXT]}],
    "AdapterStatus": lambda: [{"name": TEXT, "status": TEXT}],
    "InputTokens": lambda: [{"object": "response.input_tokens", "input_tokens": 1}],
    "File": _written(files.file_object, file_pb2.File),
    "FileList": _listed("File"),
    "Upload": _written(files.upload_object, upload_service_pb2.Upload),
    "UploadPart": _written(files.part_object, upload_service_pb2.UploadPart),
    "Adapter": _written(adapters.adapter_object, adapter_pb2.Adapter),
    "AdapterList": _listed("Adapter"),
    "LoraScales": lambda: [adapters.llama_server_list(examples(adapter_pb2.Adapter))],
    "Batch": _written(batches.batch_object, batch_pb2.Batch),
    "BatchList": _listed("Batch"),
    "VectorStore": _written(vector_stores.store_object, vector_store_pb2.VectorStore),
    "VectorStoreList": _listed("VectorStore"),
    "VectorStoreFile": _written(vector_stores.store_file_object, vector_store_pb2.VectorStoreFile),
    "VectorStoreFileList": _listed("VectorStoreFile"),
    "VectorStoreFileBatch": _written(
        vector_stores.file_batch_object, vector_store_pb2.VectorStoreFileBatch
    ),
    "VectorStoreFileContent": lambda: [vector_stores.content_page([TEXT])],
    "VectorStoreSearchResults": lambda: [
        vector_stores.search_page([TEXT], examples(vector_store_search_pb2.VectorStoreSearchHit))
    ],
    "AssistantList": _listed("Assistant"),
    "ThreadList": _listed("Thread"),
    "ThreadMessageList": _listed("ThreadMessage"),
    "Run": _written(run_objects.run_object, run_pb2.Run),
    "RunList": _listed("Run"),
    "RunStep": _steps,
    "RunStepList": _listed("RunStep"),
    "Item": _written(item_object, item_pb2.Item),
    "ItemList": _listed("Item"),
    "ResponseResource": _written(response_object, response_pb2.Response),
    "ResponseList": _listed("ResponseResource"),
    "Compaction": _written(compaction_object, response_service_pb2.CompactResponseResponse),
    "Conversation": _written(conversation_object, conversation_pb2.Conversation),
    "ConversationList": _listed("Conversation"),
    "AnthropicMessage": collected(
        inference_service_pb2.ChatResponse,
        *(functools.partial(anthropic.CollectedMessage, body) for body in _ANTHROPICS),
    ),
    "AnthropicTokenCount": _written(
        anthropic.token_count, inference_service_pb2.CountTokensResponse
    ),
    "AnthropicModel": _written(anthropic.model_object, model_pb2.Model),
    "AnthropicModelList": _paged("AnthropicModel"),
    "MessageBatch": _written(anthropic_batches.batch_object, batch_pb2.Batch),
    "MessageBatchList": _paged("MessageBatch"),
    "DeletedMessageBatch": lambda: [anthropic_batches.deleted_batch(TEXT)],
    "OllamaChat": _joined(
        collected(inference_service_pb2.ChatResponse, functools.partial(ChatAnswer, TEXT)),
        lambda: _loaded({"message": {"role": "assistant", "content": ""}}),
    ),
    "OllamaGeneration": _joined(
        collected(inference_service_pb2.GenerateResponse, *_PROMPT_ANSWERS),
        collected(inference_service_pb2.ChatResponse, *_PROMPT_ANSWERS),
        lambda: _loaded({"response": ""}),
    ),
    "OllamaModelList": lambda: [
        {"models": [ollama.listed_model(each, TEXT) for each in examples(model_pb2.Model)]}
    ],
    "OllamaRunningModels": lambda: [
        {"models": [ollama.running_model(each) for each in examples(model_pb2.Model)]}
    ],
    "OllamaModel": _written(ollama.described_model, model_pb2.Model),
    "OllamaVersion": lambda: [{"version": ollama.API_VERSION}],
    "OllamaEmbeddings": _written(EmbedAnswer(TEXT).as_object, inference_service_pb2.EmbedResponse),
    "OllamaEmbedding": _written(prompt_embedding, inference_service_pb2.EmbedResponse),
}
"""What is written of each response."""
EVENTS: Final[Mapping[str, tuple[Callable[[], Iterable[Any]], str]]] = {
    "ResponseEvent": (_response_events, "Error"),
    "ThreadEvent": (_thread_events, "Error"),
    "AnthropicEvent": (
        streamed(
            inference_service_pb2.ChatResponse,
            *(functools.partial(MessageEvents, body) for body in _ANTHROPICS),
        ),
        "AnthropicError",
    ),
    "OllamaChatEvent": (
        streamed(
            inference_service_pb2.ChatResponse,
            functools.partial(ChatAnswer, TEXT),
            read=read_lines,
        ),
        "OllamaError",
    ),
    "OllamaGenerationEvent": (
        _joined(
            streamed(inference_service_pb2.GenerateResponse, *_PROMPT_ANSWERS, read=read_lines),
            streamed(inference_service_pb2.ChatResponse, *_PROMPT_ANSWERS, read=read_lines),
        ),
        "OllamaError",
    ),
    "OllamaPullEvent": (_pull_events, "OllamaError"),
}
"""What is written of each event of a stream, and the schema of its errors."""
