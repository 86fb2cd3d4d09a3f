"""What the gateway writes of each kind of response and of event, by the name of its schema."""

import functools
import io
import wave
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from corral.control.v1 import (
    batch_pb2,
)
from corral.inference.v1 import (
    generation_pb2,
    inference_service_pb2,
    load_pb2,
    model_pb2,
)
from corral.inference.v1.engine_service_pb2 import WatchModelsResponse
from google.protobuf.message import Message

from dialects.anthropic import message_batches as anthropic_batches
from dialects.anthropic import objects as anthropic
from dialects.anthropic.events import MessageEvents
from dialects.anthropic.message_request import parse_message
from dialects.llama_server import objects as llama_server
from dialects.llama_server import scores, tokens
from dialects.llama_server.completion import parse_continuation
from dialects.llama_server.events import Continuations
from dialects.ollama import errors as ollama_errors
from dialects.ollama import objects as ollama
from dialects.ollama.embeddings import EmbedAnswer, prompt_embedding
from dialects.ollama.events import ChatAnswer, PromptAnswer, loaded
from dialects.ollama.pull import PullProgress
from dialects.openai.chat import embeddings, objects
from dialects.openai.chat.chat_request import parse_chat
from dialects.openai.chat.chunks import ChatChunks, CompletionChunks
from dialects.openai.chat.completion_request import parse_completion
from dialects.openai.chat.transcription import (
    Transcription,
    parse_transcription,
    parse_translation,
)
from dialects.openai.envelope import Envelope
from dialects.shared.timings import timings_object
from dialects.shared.token_logprobs import chat_logprobs
from tools.response_schemas.examples import TEXT, examples
from tools.response_schemas.shape import reference
from tools.response_schemas.streams import (
    collected,
    example_errors,
    read_lines,
    streamed,
)

Write = Callable[[Any], Any]
_ENVELOPE: Final = Envelope(TEXT, 1, TEXT, TEXT)
_MESSAGES: Final = [{"role": "user", "content": TEXT}]
_CHAT: Final = {"model": TEXT, "messages": _MESSAGES, "n": 2}
_FUNCTION: Final = {"name": TEXT}
_EVERYTHING: Final = {
    "logprobs": True,
    "prompt_logprobs": 1,
    "return_token_ids": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
_COMPLETION: Final = {"model": TEXT, "prompt": TEXT, "n": 2}
_WITH_ECHO: Final = {**_EVERYTHING, "logprobs": 1, "echo": True}
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


def _paged(name: str) -> Callable[[], list[Any]]:
    data = [{"id": TEXT, **reference(name)}]
    return lambda: [anthropic.page_object(each, has_more=bool(each)) for each in (data, [])]


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


def _transcription(parse: Callable[[Any], Any], **fields: str) -> Callable[[], Any]:
    with io.BytesIO() as file:
        with wave.open(file, "wb") as sound:
            sound.setparams((1, 1, 8000, 1, "NONE", ""))
            sound.writeframes(bytes(16))
        body, data = parse({"model": TEXT, **fields}), file.getvalue()
    return functools.partial(Transcription, body, data)


def _embedding_lists() -> Iterator[Any]:
    for encoding in ({}, {"encoding_format": "base64"}):
        body = embeddings.parse_embedding({"model": TEXT, "input": TEXT, **encoding})
        for reply in examples(inference_service_pb2.EmbedResponse):
            yield embeddings.embedding_list(body, reply)


_CHATS: Final = [
    parse_chat(_CHAT),
    parse_chat(_CHAT | _EVERYTHING),
    parse_chat(_CHAT | {"tools": [{"type": "function", "function": _FUNCTION}]}),
    parse_chat(_CHAT | {"functions": [_FUNCTION]}),
]
_COMPLETIONS: Final = [parse_completion(_COMPLETION), parse_completion(_COMPLETION | _WITH_ECHO)]
_ANTHROPICS: Final = [parse_message(_ANTHROPIC), parse_message(_THOUGHTS)]
_CONTINUATIONS: Final = [
    functools.partial(Continuations, parse_continuation({"prompt": TEXT}), prompts)
    for prompts in ([TEXT], [[1]])
]
_PROMPT_ANSWERS: Final = [functools.partial(PromptAnswer, TEXT, each) for each in (None, [1])]


OBJECTS: Final[Mapping[str, Callable[[], Iterable[Any]]]] = {
    "Status": lambda: [{"status": TEXT}],
    "Timings": _written(timings_object, generation_pb2.Done),
    "TokenLogprob": lambda: chat_logprobs(examples(generation_pb2.ChosenLogprob)),
    "ChatCompletion": collected(
        inference_service_pb2.ChatResponse,
        *(functools.partial(objects.ChatCompletion, _ENVELOPE, body) for body in _CHATS),
    ),
    "Completion": collected(
        inference_service_pb2.GenerateResponse,
        functools.partial(objects.TextCompletion, _ENVELOPE, _COMPLETIONS[0]),
        functools.partial(objects.TextCompletion, _ENVELOPE, _COMPLETIONS[1], [TEXT]),
    ),
    "EmbeddingList": _embedding_lists,
    "RerankResult": _ranked_lists,
    "TextRanks": _text_ranks,
    "Transcription": collected(
        inference_service_pb2.ChatResponse,
        _transcription(parse_transcription),
        _transcription(parse_transcription, response_format="verbose_json", language="EN"),
        _transcription(parse_translation, response_format="verbose_json"),
    ),
    "Model": _written(objects.model_object, model_pb2.Model),
    "ModelList": lambda: [objects.model_list(examples(model_pb2.Model))],
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
    "Continuation": collected(inference_service_pb2.GenerateResponse, *_CONTINUATIONS),
    "ContinuationList": lambda: [[reference("Continuation")]],
    "LlamaServerProps": _written(
        functools.partial(llama_server.props, build=TEXT), model_pb2.Model
    ),
    "LlamaServerSlots": _written(_slots, model_pb2.Model),
    "LlamaServerEmbeddings": _written(scores.embedding_list, inference_service_pb2.EmbedResponse),
    "Scores": lambda: [
        scores.score_list(TEXT, 1, [([0, 1], reply)])
        for reply in examples(inference_service_pb2.RerankResponse)
    ],
    "Tokens": _token_lists,
    "DetokenizedText": _written(tokens.text_of_tokens, inference_service_pb2.DetokenizeResponse),
    "RenderedPrompt": lambda: [{"prompt": TEXT}],
    "TokenizerInfo": _written(llama_server.tokenizer_info, model_pb2.Model),
}
"""What is written of each response."""
EVENTS: Final[Mapping[str, tuple[Callable[[], Iterable[Any]], str]]] = {
    "ChatCompletionEvent": (
        streamed(
            inference_service_pb2.ChatResponse,
            *(functools.partial(ChatChunks, _ENVELOPE, body) for body in _CHATS),
        ),
        "Error",
    ),
    "CompletionEvent": (
        streamed(
            inference_service_pb2.GenerateResponse,
            functools.partial(CompletionChunks, _ENVELOPE, _COMPLETIONS[0]),
            functools.partial(CompletionChunks, _ENVELOPE, _COMPLETIONS[1], [TEXT]),
        ),
        "Error",
    ),
    "TranscriptEvent": (
        streamed(
            inference_service_pb2.ChatResponse, _transcription(parse_transcription, stream="true")
        ),
        "Error",
    ),
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
    "ContinuationEvent": (
        streamed(inference_service_pb2.GenerateResponse, *_CONTINUATIONS),
        "LlamaServerError",
    ),
}
"""What is written of each event of a stream, and the schema of its errors."""
