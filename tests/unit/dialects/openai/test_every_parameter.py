"""Every parameter of OpenAI's client is implemented, reported as ignored, or refused by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from openai.types import (
    completion_create_params,
    embedding_create_params,
    vector_store_search_params,
)
from openai.types.audio import transcription_create_params, translation_create_params
from openai.types.beta import (
    assistant_create_params,
    assistant_update_params,
    thread_create_and_run_params,
)
from openai.types.beta.threads import run_create_params
from openai.types.chat import ChatCompletionStreamOptionsParam
from openai.types.chat import completion_create_params as chat
from openai.types.responses import (
    ResponseTextConfigParam,
    input_token_count_params,
    response_compact_params,
    response_create_params,
)
from openai.types.shared_params import Reasoning

from dialects.openai.assistants.requests import create_assistant_request, update_assistant_request
from dialects.openai.assistants.run_requests import (
    create_run_request,
    create_thread_and_run_request,
    parse_run,
    parse_thread_and_run,
)
from dialects.openai.chat.chat_request import chat_request, parse_chat
from dialects.openai.chat.completion_request import parse_completion, prompt_requests
from dialects.openai.chat.embeddings import embed_request, parse_embedding
from dialects.openai.chat.transcription import (
    parse_transcription,
    parse_translation,
    transcription_request,
)
from dialects.openai.resources.vector_search import search_request
from dialects.openai.responses.requests import compact_request, new_response, parse_response
from dialects.shared.parameters import ParameterReport, parameter_report
from svc_kit.errors import DomainError

FUNCTION = {"name": "f", "parameters": {"type": "object"}}
NESTED_TOOL = [{"type": "function", "function": FUNCTION}]
FLAT_TOOL = [{"type": "function", **FUNCTION}]
SAMPLES: dict[str, Any] = {
    "access_programs": ["p"],
    "additional_instructions": "more",
    "additional_messages": [{"role": "user", "content": "x"}],
    "assistant_id": "asst_2",
    "audio": {"voice": "x", "format": "wav"},
    "background": True,
    "best_of": 2,
    "chunking_strategy": "none",
    "context": "all_turns",
    "context_management": [{"type": "compaction", "compact_threshold": 2000}],
    "conversation": "conv_1",
    "description": "what it is",
    "dimensions": 3,
    "echo": True,
    "effort": "low",
    "encoding_format": "base64",
    "filters": {"type": "eq", "key": "a", "value": 1},
    "format": {"type": "json_object"},
    "frequency_penalty": 0.5,
    "function_call": "auto",
    "functions": [FUNCTION],
    "generate_summary": "auto",
    "image": {"size": "1"},
    "include": ["reasoning.encrypted_content"],
    "include_obfuscation": True,
    "include_usage": True,
    "input": "b",
    "instructions": "be short",
    "keywords": "a",
    "known_speaker_names": "a",
    "known_speaker_references": "a",
    "language": "en",
    "languages": "en",
    "logit_bias": {"5": 1},
    "max_completion_tokens": 500,
    "max_num_results": 3,
    "max_output_tokens": 5,
    "max_prompt_tokens": 500,
    "max_tokens": 5,
    "max_tool_calls": 3,
    "messages": [{"role": "user", "content": "b"}],
    "metadata": {"a": "b"},
    "modalities": ["text", "audio"],
    "mode": "pro",
    "model": "other",
    "moderation": {"model": "m"},
    "n": 2,
    "name": "a name",
    "parallel_tool_calls": False,
    "personality": "friendly",
    "prediction": {"type": "content", "content": "x"},
    "presence_penalty": 0.5,
    "previous_response_id": "resp_1",
    "prompt": "b",
    "prompt_cache_key": "k",
    "prompt_cache_options": {"a": 1},
    "prompt_cache_retention": "24h",
    "query": "b",
    "ranking_options": {"score_threshold": 0.5},
    "reasoning": {"effort": "low"},
    "reasoning_effort": "low",
    "response_format": {"type": "json_object"},
    "rewrite_query": True,
    "safety_identifier": "s",
    "seed": 5,
    "service_tier": "flex",
    "stop": "x",
    "store": True,
    "stream": True,
    "stream_options": {"include_usage": True},
    "suffix": "x",
    "summary": "auto",
    "temperature": 0.5,
    "text": {"verbosity": "low"},
    "thread": {"messages": [{"role": "user", "content": "x"}]},
    "timestamp_granularities": "word",
    "tool_choice": "none",
    "tool_resources": {"file_search": {"vector_store_ids": ["vs_1"]}},
    "top_logprobs": 3,
    "top_p": 0.5,
    "truncation": "auto",
    "truncation_strategy": {"type": "last_messages", "last_messages": 3},
    "user": "u",
    "verbosity": "low",
    "web_search_options": {},
}
"""A value of each parameter that is not its default."""


@dataclass(frozen=True)
class Endpoint:
    params: type
    asked: Callable[[Mapping[str, Any]], object]
    base: dict[str, Any]
    samples: dict[str, Any] = field(default_factory=dict)
    at: str = ""
    """The object in the body that has the parameters."""


def chat_asked(fields: Mapping[str, Any]) -> object:
    """The call, and what decides how it is answered."""
    body = parse_chat(fields)
    return chat_request(body), body.stream, body.stream and body.stream_options


def completion_asked(fields: Mapping[str, Any]) -> object:
    """As of a chat; the prompt is echoed without the service."""
    body = parse_completion(fields)
    return prompt_requests(body), body.stream, body.echo


def embedding_asked(fields: Mapping[str, Any]) -> object:
    """The call, and how its vectors are written."""
    body = parse_embedding(fields)
    return embed_request(body), body.encoding_format


def response_asked(fields: Mapping[str, Any]) -> object:
    body = parse_response(fields)
    return new_response(body), body.stream


def run_asked(fields: Mapping[str, Any]) -> object:
    body = parse_run(fields)
    return create_run_request("thread_1", body, ""), body.stream


def thread_run_asked(fields: Mapping[str, Any]) -> object:
    body = parse_thread_and_run(fields)
    return create_thread_and_run_request(body, ""), body.stream


def transcription_asked(fields: Mapping[str, Any]) -> object:
    body = parse_transcription(fields)
    return transcription_request(body, b""), body.response_format, body.stream


def translation_asked(fields: Mapping[str, Any]) -> object:
    body = parse_translation(fields)
    return transcription_request(body, b""), body.response_format


USER = [{"role": "user", "content": "a"}]
CHAT = {"model": "m", "messages": USER}
RESPONSE = {"model": "m", "input": "a"}
RESPONSE_SAMPLES = {
    "conversation": "conv_1",
    "prompt": {"id": "p"},
    "store": False,
    "tools": FLAT_TOOL,
}
FORM_SAMPLES = {
    "response_format": "text",
    "temperature": "0.5",
    "stream": "true",
    "include": "logprobs",
}
RUN_SAMPLES = {"tools": NESTED_TOOL, "include": ["x"]}
ENDPOINTS: dict[str, Endpoint] = {
    "chat": Endpoint(
        chat.CompletionCreateParamsStreaming,
        chat_asked,
        CHAT,
        {"logprobs": True, "tools": NESTED_TOOL},
    ),
    "chat.stream_options": Endpoint(
        ChatCompletionStreamOptionsParam, chat_asked, CHAT | {"stream": True}, {}, "stream_options"
    ),
    "completions": Endpoint(
        completion_create_params.CompletionCreateParamsStreaming,
        completion_asked,
        {"model": "m", "prompt": "a"},
        {"logprobs": 2},
    ),
    "embeddings": Endpoint(
        embedding_create_params.EmbeddingCreateParams,
        embedding_asked,
        {"model": "m", "input": "a"},
    ),
    "responses": Endpoint(
        response_create_params.ResponseCreateParamsStreaming,
        response_asked,
        RESPONSE,
        RESPONSE_SAMPLES,
    ),
    "responses.reasoning": Endpoint(Reasoning, response_asked, RESPONSE, {}, "reasoning"),
    "responses.text": Endpoint(ResponseTextConfigParam, response_asked, RESPONSE, {}, "text"),
    "responses.stream_options": Endpoint(
        response_create_params.StreamOptions,
        response_asked,
        RESPONSE | {"stream": True},
        {},
        "stream_options",
    ),
    "input_tokens": Endpoint(
        input_token_count_params.InputTokenCountParams, response_asked, RESPONSE, RESPONSE_SAMPLES
    ),
    "compact": Endpoint(response_compact_params.ResponseCompactParams, compact_request, RESPONSE),
    "assistants": Endpoint(
        assistant_create_params.AssistantCreateParams,
        lambda fields: create_assistant_request(fields, ""),
        {"model": "m"},
        RUN_SAMPLES,
    ),
    "assistant": Endpoint(
        assistant_update_params.AssistantUpdateParams,
        lambda fields: update_assistant_request("asst_1", fields),
        {},
        RUN_SAMPLES,
    ),
    "runs": Endpoint(
        run_create_params.RunCreateParamsStreaming,
        run_asked,
        {"assistant_id": "asst_1"},
        RUN_SAMPLES,
    ),
    "threads.runs": Endpoint(
        thread_create_and_run_params.ThreadCreateAndRunParamsStreaming,
        thread_run_asked,
        {"assistant_id": "asst_1"},
        RUN_SAMPLES,
    ),
    "transcriptions": Endpoint(
        transcription_create_params.TranscriptionCreateParamsStreaming,
        transcription_asked,
        {"model": "m"},
        FORM_SAMPLES,
    ),
    "translations": Endpoint(
        translation_create_params.TranslationCreateParams,
        translation_asked,
        {"model": "m"},
        FORM_SAMPLES,
    ),
    "search": Endpoint(
        vector_store_search_params.VectorStoreSearchParams,
        lambda fields: search_request("vs_1", fields),
        {"query": "a"},
    ),
}


def parameters() -> list[tuple[str, str]]:
    """Each endpoint with each of its parameters but files."""
    return [
        (name, parameter)
        for name, endpoint in ENDPOINTS.items()
        for parameter in sorted(
            endpoint.params.__required_keys__ | endpoint.params.__optional_keys__  # type: ignore[attr-defined]  # of a TypedDict
        )
        if parameter != "file"
    ]


@pytest.mark.parametrize(("name", "parameter"), parameters())
def test_no_parameter_is_ignored_in_silence(name: str, parameter: str) -> None:
    """It changes what is asked for, is in the report, or is refused by its name."""
    endpoint = ENDPOINTS[name]
    value = (SAMPLES | endpoint.samples)[parameter]
    path = f"{endpoint.at}.{parameter}" if endpoint.at else parameter
    added = {endpoint.at: {parameter: value}} if endpoint.at else {parameter: value}
    named = named_fields(endpoint, endpoint.base | added)
    is_named = any(each.startswith(path) for each in named)

    assert is_named or endpoint.asked(endpoint.base | added) != endpoint.asked(endpoint.base)


def named_fields(endpoint: Endpoint, body: Mapping[str, Any]) -> tuple[str, ...]:
    """The ignored parameters of a body, or the one for which it is refused."""
    report = ParameterReport()
    token = parameter_report.set(report)
    try:
        endpoint.asked(body)
    except DomainError as error:
        return (error.field or "",)
    finally:
        parameter_report.reset(token)
    return report.names
