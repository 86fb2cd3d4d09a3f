"""What the gateway writes of each kind of response and of event, by the name of its schema."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from corral.control.v1 import (
    batch_pb2,
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
from tools.response_schemas.examples import TEXT, examples
from tools.response_schemas.shape import reference
from tools.response_schemas.streams import (
    collected,
    example_errors,
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


def _pull_events() -> Iterator[Any]:
    for response in examples(WatchModelsResponse):
        progress = PullProgress()
        yield from read_lines(b"".join([*progress.frames(response), *progress.final_frames()]))
    yield from map(ollama_errors.error_body, example_errors())


def _joined(*sources: Callable[[], Iterable[Any]]) -> Callable[[], Iterator[Any]]:
    return lambda: (value for source in sources for value in source())


def _loaded(output: dict[str, Any]) -> list[Any]:
    return [loaded(TEXT, output, unloads=each) for each in (True, False)]


def _paged(name: str) -> Callable[[], list[Any]]:
    data = [{"id": TEXT, **reference(name)}]
    return lambda: [anthropic.page_object(each, has_more=bool(each)) for each in (data, [])]


_ANTHROPICS: Final = [parse_message(_ANTHROPIC), parse_message(_THOUGHTS)]
_PROMPT_ANSWERS: Final = [functools.partial(PromptAnswer, TEXT, each) for each in (None, [1])]


OBJECTS: Final[Mapping[str, Callable[[], Iterable[Any]]]] = {
    "Status": lambda: [{"status": TEXT}],
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
