"""What the dialects write of each declared type that is not made from one message."""

import functools
import io
import wave
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from corral.control.v1 import batch_pb2, batch_service_pb2
from corral.inference.v1 import inference_service_pb2, load_pb2, model_pb2
from corral.inference.v1.engine_service_pb2 import WatchModelsResponse
from google.protobuf.message import Message

from dialects.anthropic import errors as anthropic_errors
from dialects.anthropic import events as anthropic_events
from dialects.anthropic import message_batches
from dialects.anthropic import objects as anthropic
from dialects.anthropic.message_request import parse_message
from dialects.llama_server import errors as llama_server_errors
from dialects.llama_server import events as llama_server_events
from dialects.llama_server import objects as llama_server
from dialects.llama_server import scores, tokens
from dialects.llama_server.completion import parse_continuation
from dialects.llama_server.events import Continuations
from dialects.ollama import embeddings as ollama_embeddings
from dialects.ollama import errors as ollama_errors
from dialects.ollama import events as ollama_events
from dialects.ollama import objects as ollama
from dialects.ollama import pull
from dialects.openai import errors as openai_errors
from dialects.openai.chat import embeddings, models, shapes, transcription
from dialects.openai.chat.chat_request import parse_chat
from dialects.openai.chat.chunks import ChatChunks, CompletionChunks
from dialects.openai.chat.completion_request import parse_completion
from dialects.openai.chat.objects import CollectedChat, CollectedCompletion
from dialects.openai.envelope import Envelope
from gateway.routes.models import Status
from tests.support.call_frames import collected, example_errors, read_lines, streamed
from tests.support.message_examples import TEXT, examples
from tests.support.written_openai_objects import OPENAI_OBJECTS

_ENVELOPE: Final = Envelope(TEXT, 1, TEXT, TEXT)
_MESSAGES: Final = [{"role": "user", "content": TEXT}]
_CHAT: Final = {"model": TEXT, "messages": _MESSAGES, "n": 2}
_FUNCTION: Final = {"name": TEXT}
_USAGE: Final = {"stream_options": {"include_usage": True}}
_EVERYTHING: Final = {
    "logprobs": True,
    "prompt_logprobs": 1,
    "return_token_ids": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
_COMPLETION: Final = {"model": TEXT, "prompt": TEXT, "n": 2}
_CHATS: Final = [
    parse_chat(_CHAT | more)
    for more in (
        _USAGE,
        _EVERYTHING,
        {"tools": [{"type": "function", "function": _FUNCTION}]},
        {"functions": [_FUNCTION]},
    )
]
_MESSAGE: Final = {"model": TEXT, "messages": _MESSAGES, "max_tokens": 1}
_THOUGHTS: Final = {"max_tokens": 2, "stop_sequences": [TEXT], "thinking": {"type": "adaptive"}}
_ANTHROPIC: Final = [parse_message(_MESSAGE), parse_message(_MESSAGE | _THOUGHTS)]
_COMPLETIONS: Final = [
    (parse_completion(_COMPLETION | _USAGE), ()),
    (parse_completion({**_COMPLETION, **_EVERYTHING, "logprobs": 1, "echo": True}), (TEXT,)),
]


def _written(write: Callable[[Any], Any], message: type[Message]) -> Callable[[], Iterable[Any]]:
    return lambda: map(write, examples(message))


def _transcription(parse: Callable[[Any], Any], **fields: str) -> Callable[[], Any]:
    with io.BytesIO() as file:
        with wave.open(file, "wb") as sound:
            sound.setparams((1, 1, 8000, 1, "NONE", ""))
            sound.writeframes(bytes(16))
        body, data = parse({"model": TEXT, **fields}), file.getvalue()
    return functools.partial(transcription.CollectedTranscription, body, data)


def _embedding_lists() -> Iterator[Any]:
    for encoding in ({}, {"encoding_format": "base64"}):
        body = embeddings.parse_embedding({"model": TEXT, "input": TEXT, **encoding})
        for reply in examples(inference_service_pb2.EmbedResponse):
            yield embeddings.embedding_list(body, reply)


def _ranked_lists() -> Iterator[Any]:
    fields = {"model": TEXT, "query": TEXT, "documents": [TEXT, TEXT]}
    for with_documents in (True, False):
        body = embeddings.parse_rerank({**fields, "return_documents": with_documents})
        for reply in examples(inference_service_pb2.RerankResponse):
            yield embeddings.ranked_list(TEXT, body, reply)


def _text_ranks() -> Iterator[Any]:
    fields = {"query": TEXT, "texts": [TEXT, TEXT]}
    for with_texts in (True, False):
        body = scores.parse_text_rank({**fields, "return_text": with_texts})
        for reply in examples(inference_service_pb2.RerankResponse):
            yield scores.text_ranks(body, reply)


def _slots(model: model_pb2.Model) -> Any:
    choices = [load_pb2.LiveChoice(slot=0)]
    request = load_pb2.LiveRequest(request_id=TEXT, project=TEXT, model=model.name, choices=choices)
    return [*llama_server.slot_list(model, [request], TEXT), *llama_server.slot_list(model, [], "")]


def _token_lists() -> Iterator[Any]:
    reply = inference_service_pb2.TokenizeResponse(token_ids=[1, 1], pieces=[b"~", b"\xff"])
    for with_pieces in (True, False):
        body = tokens.parse_tokenize({"content": TEXT, "with_pieces": with_pieces})
        yield tokens.token_answer(body, [reply])
        pieces = reply.pieces if with_pieces else None
        yield tokens.counted_tokens(reply.token_ids, pieces, model_pb2.Model())


def _pull_events() -> Iterator[Any]:
    for response in examples(WatchModelsResponse):
        progress = pull.PullProgress()
        yield from read_lines(b"".join([*progress.frames(response), *progress.final_frames()]))
    yield from map(ollama_errors.error_body, example_errors())


def _joined(*sources: Callable[[], Iterable[Any]]) -> Callable[[], Iterator[Any]]:
    return lambda: (value for source in sources for value in source())


def _loaded(output: Any) -> Callable[[], list[Any]]:
    return lambda: [ollama_events.loaded(TEXT, output, unloads=each) for each in (True, False)]


_PROMPT_ANSWERS: Final = [
    functools.partial(ollama_events.PromptAnswer, TEXT, each) for each in (None, [1])
]
_CONTINUATIONS: Final = [
    functools.partial(Continuations, parse_continuation({"prompt": TEXT}), prompts)
    for prompts in ([TEXT], [[1]])
]

WRITTEN_SHAPES: Final[Mapping[Any, Callable[[], Iterable[Any]]]] = {
    openai_errors.Error: lambda: map(openai_errors.error_body, example_errors()),
    anthropic_errors.AnthropicError: lambda: (
        anthropic_errors.error_body(each, TEXT) for each in example_errors()
    ),
    ollama_errors.OllamaError: lambda: map(ollama_errors.error_body, example_errors()),
    llama_server_errors.LlamaServerError: lambda: map(
        llama_server_errors.error_body, example_errors()
    ),
    Status: lambda: [{"status": TEXT}],
    shapes.ChatCompletion: collected(
        inference_service_pb2.ChatResponse,
        *(functools.partial(CollectedChat, _ENVELOPE, body) for body in _CHATS),
    ),
    shapes.ChatCompletionEvent: streamed(
        inference_service_pb2.ChatResponse,
        *(functools.partial(ChatChunks, _ENVELOPE, body) for body in _CHATS),
    ),
    shapes.Completion: collected(
        inference_service_pb2.GenerateResponse,
        *(functools.partial(CollectedCompletion, _ENVELOPE, *each) for each in _COMPLETIONS),
    ),
    shapes.CompletionEvent: streamed(
        inference_service_pb2.GenerateResponse,
        *(functools.partial(CompletionChunks, _ENVELOPE, *each) for each in _COMPLETIONS),
    ),
    embeddings.EmbeddingList: _embedding_lists,
    embeddings.RerankResult: _ranked_lists,
    transcription.Transcription: collected(
        inference_service_pb2.ChatResponse,
        _transcription(transcription.parse_transcription),
        *(
            _transcription(parse, response_format="verbose_json", **fields)
            for parse, fields in (
                (transcription.parse_transcription, {"language": "EN"}),
                (transcription.parse_translation, {}),
            )
        ),
    ),
    transcription.TranscriptEvent: streamed(
        inference_service_pb2.ChatResponse,
        _transcription(transcription.parse_transcription, stream="true"),
    ),
    scores.TextRanks: _text_ranks,
    scores.Scores: lambda: [
        scores.score_list(TEXT, 1, [([0, 1], reply)])
        for reply in examples(inference_service_pb2.RerankResponse)
    ],
    scores.LlamaServerEmbeddings: _written(
        scores.embedding_list, inference_service_pb2.EmbedResponse
    ),
    tokens.Tokens: _token_lists,
    tokens.RenderedPrompt: lambda: [{"prompt": TEXT}],
    llama_server.LlamaServerProps: _written(
        functools.partial(llama_server.props, build=TEXT), model_pb2.Model
    ),
    llama_server.LlamaServerSlots: _written(_slots, model_pb2.Model),
    llama_server_events.Continuation: collected(
        inference_service_pb2.GenerateResponse, *_CONTINUATIONS
    ),
    llama_server_events.ContinuationList: lambda: [
        Continuations(parse_continuation({"prompt": TEXT}), [TEXT, [1]]).as_object()
    ],
    llama_server_events.ContinuationEvent: streamed(
        inference_service_pb2.GenerateResponse, *_CONTINUATIONS
    ),
    ollama_events.OllamaChat: _joined(
        collected(
            inference_service_pb2.ChatResponse, functools.partial(ollama_events.ChatAnswer, TEXT)
        ),
        _loaded(ollama_events.NO_MESSAGE),
    ),
    ollama_events.OllamaChatEvent: streamed(
        inference_service_pb2.ChatResponse,
        functools.partial(ollama_events.ChatAnswer, TEXT),
        read=read_lines,
    ),
    ollama_events.OllamaGeneration: _joined(
        collected(inference_service_pb2.GenerateResponse, *_PROMPT_ANSWERS),
        collected(inference_service_pb2.ChatResponse, *_PROMPT_ANSWERS),
        _loaded(ollama_events.NO_RESPONSE),
    ),
    ollama_events.OllamaGenerationEvent: _joined(
        streamed(inference_service_pb2.GenerateResponse, *_PROMPT_ANSWERS, read=read_lines),
        streamed(inference_service_pb2.ChatResponse, *_PROMPT_ANSWERS, read=read_lines),
    ),
    pull.OllamaPull: lambda: [pull.PullProgress().as_object()],
    pull.OllamaPullEvent: _pull_events,
    ollama.OllamaModelList: _written(
        lambda model: {"models": [ollama.listed_model(model, TEXT)]}, model_pb2.Model
    ),
    ollama.OllamaRunningModels: _written(
        lambda model: {"models": [ollama.running_model(model)]}, model_pb2.Model
    ),
    ollama.OllamaVersion: lambda: [{"version": ollama.API_VERSION}],
    ollama_embeddings.OllamaEmbeddings: _written(
        ollama_embeddings.EmbedAnswer(TEXT).as_object, inference_service_pb2.EmbedResponse
    ),
    ollama_embeddings.OllamaEmbedding: _written(
        ollama_embeddings.prompt_embedding, inference_service_pb2.EmbedResponse
    ),
    anthropic.AnthropicMessage: collected(
        inference_service_pb2.ChatResponse,
        *(functools.partial(anthropic.CollectedMessage, body) for body in _ANTHROPIC),
    ),
    anthropic_events.AnthropicEvent: streamed(
        inference_service_pb2.ChatResponse,
        *(functools.partial(anthropic_events.MessageEvents, body) for body in _ANTHROPIC),
    ),
    anthropic.AnthropicModelList: _written(
        lambda model: anthropic.model_page([model], anthropic.PageQuery()), model_pb2.Model
    ),
    message_batches.MessageBatch: _written(message_batches.batch_object, batch_pb2.Batch),
    message_batches.MessageBatchList: lambda: [
        message_batches.batch_page(batch_service_pb2.ListBatchesResponse(batches=batches))
        for batches in ([], [batch_pb2.Batch(id=TEXT)])
    ],
    message_batches.DeletedMessageBatch: lambda: [message_batches.deleted_batch(TEXT)],
    models.ModelList: _written(lambda model: models.model_list([model]), model_pb2.Model),
    **OPENAI_OBJECTS,
}
"""The objects of each type, and the events of each stream."""
