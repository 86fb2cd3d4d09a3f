"""Errors in OpenAI's envelope; field paths of protos are mapped to those of the caller's body."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from typing_extensions import TypedDict

from dialects.shared.errors import field_steps, with_field
from dialects.shared.parameters import parameter_report
from svc_kit.errors import DomainError, MissingField, TooShort
from svc_kit.errors.status import ErrorDetails, openai_error

ParamNames = Mapping[str, str]
"""Maps proto field names (without their message) to field names of the HTTP API."""

_COMMON = {
    "num_choices": "n",
    "constraint": "response_format",
    "penalty_last_n": "repeat_last_n",
    "include_stop": "include_stop_str_in_output",
    "special_tokens": "skip_special_tokens",
    "reuse": "cache_prompt",
    "salt": "cache_salt",
    "affinity": "prompt_cache_key",
    "adapters": "lora",
}

CHAT_PARAMS: ParamNames = _COMMON | {
    "prompt": "messages",
    "text": "messages",
    "token_ids": "messages",
    "conversation": "messages",
    "kwargs_json": "chat_template_kwargs",
    "template": "chat_template",
}

TRANSCRIPTION_PARAMS: ParamNames = {**CHAT_PARAMS, "messages": "file"}
"""The only message has the file."""

COMPLETION_PARAMS: ParamNames = _COMMON | {
    "infill.suffix": "suffix",
    "text": "prompt",
    "token_ids": "prompt",
    "top_logprobs": "logprobs",
}

EMBEDDING_PARAMS: ParamNames = _COMMON | {"inputs": "input"}
RERANK_PARAMS: ParamNames = _COMMON

_STORED = {"page_size": "limit", "request_id": "Idempotency-Key"}
FILE_PARAMS: ParamNames = _STORED | {
    "chunk": "data",
    "size_bytes": "bytes",
    "ttl": "expires_after.seconds",
}
ADAPTER_PARAMS: ParamNames = _STORED | {"chunk": "file"}
LOAD_LORA_PARAMS: ParamNames = {
    "name": "lora_name",
    "path": "lora_path",
    "model": "base_model_name",
}

BATCH_PARAMS: ParamNames = _STORED | {"output_ttl": "output_expires_after.seconds"}

RESPONSE_PARAMS: ParamNames = (
    _COMMON
    | _STORED
    | {
        "compact_threshold": "context_management[0].compact_threshold",
        "constraint": "text.format.schema",
        "conversation_id": "conversation",
        "messages": "input",
        "prompt": "input",
        "reasoning_effort": "reasoning.effort",
        "response_format": "text.format.schema",
    }
)

VECTOR_STORE_PARAMS: ParamNames = _STORED | {
    "queries": "query",
    "inputs": "query",
    "max_results": "max_num_results",
    "filter": "filters",
    "ranking": "ranking_options",
    "chunking": "chunking_strategy.static",
    "expire_after_days": "expires_after.days",
}

ASSISTANT_PARAMS: ParamNames = _COMMON | _STORED

_PROMPT = re.compile(r"prompt(?=\[|$)")
_PREFIXED = ("dry", "mirostat", "adaptive")
_PARTS = re.compile(r"^(messages\[\d+\]\.)parts\b")
_MEDIA = re.compile(r"^(messages\[\d+\]\.content\[\d+\])\.(image|audio|document)\b(\.data)?")
_MEDIA_NAMES = {
    "image": ("image_url", "url"),
    "audio": ("input_audio", "data"),
    "document": ("file", "file_data"),
}
"""The field of a part, and the field in it that has the bytes."""
_ADAPTER = re.compile(r"^(lora\[\d+\]\.)adapter$")
_TOOL = re.compile(r"^(tools\[\d+\]\.)(name|description|parameters_json|strict)$")
_NESTED = re.compile(r"^(tools\[\d+\]|text\.format)\.(?:function|custom|file_search|json_schema)\.")
"""Objects of protos whose fields are inlined in request bodies of responses."""


class Error(TypedDict):
    """An error in OpenAI's envelope."""

    error: ErrorDetails


def error_body(error: DomainError) -> Error:
    """The error in OpenAI's envelope."""
    return {"error": openai_error(error)}


def with_openai_names(error: DomainError, params: ParamNames) -> DomainError:
    """The same error with the caller's name of the field."""
    if error.field is None:
        return error
    name = openai_name(error.field, params)
    if params is RESPONSE_PARAMS and (report := parameter_report.get()) is not None:
        name = report.place_of(name)
    return with_field(error, name)


def with_prompt_number(error: DomainError, number: int) -> DomainError:
    """The same error with the index of the prompt, if its field is the prompt.

    The service reports an empty prompt as missing; here it becomes TooShort.
    """
    name = openai_name(error.field or "", COMPLETION_PARAMS)
    if not _PROMPT.match(name):
        return error
    field = _PROMPT.sub(f"prompt[{number}]", name)
    if isinstance(error, MissingField):
        return TooShort(field=field, length=0, minimum=1, unit="characters")
    return with_field(error, field)


@contextmanager
def openai_names(params: ParamNames) -> Iterator[None]:
    """Replace proto field names in errors that the block raises by the caller's names."""
    try:
        yield
    except DomainError as error:
        raise with_openai_names(error, params) from error.__cause__


@contextmanager
def prompt_names(number: int, count: int) -> Iterator[None]:
    """Add the index of the prompt to errors that the block raises, if there are several prompts."""
    try:
        yield
    except DomainError as error:
        if count == 1:
            raise
        raise with_prompt_number(error, number) from error.__cause__


def openai_name(field: str, params: ParamNames) -> str:
    """The caller's name of a proto field, given with or without its enclosing messages."""
    whole, is_member, member = field.partition("parameters_json.")
    if is_member:  # of the schema of a tool
        return f"{openai_name(f'{whole}parameters_json', params)}.{member}"
    steps = field_steps(field)
    if len(steps) > 1 and steps[0] in _PREFIXED:
        return f"{steps[0]}_{steps[1]}"
    if steps[0] == "constraint":
        return params.get(field, params["constraint"])
    head, bracket, rest = steps[0].partition("[")
    if params is TRANSCRIPTION_PARAMS and head == "messages":
        return params[head]
    name = ".".join([params.get(head, head) + bracket + rest, *steps[1:]])
    name = _PARTS.sub(r"\1content", name).replace("prompt.ids[", "prompt[")
    name = _MEDIA.sub(_media_name, name)
    name = params.get(name, name)
    name = _ADAPTER.sub(r"\1id", name)
    name = _TOOL.sub(lambda match: f"{match[1]}function.{match[2].removesuffix('_json')}", name)
    return _NESTED.sub(r"\1.", name) if params is RESPONSE_PARAMS else name


def _media_name(match: re.Match[str]) -> str:
    part, data = _MEDIA_NAMES[match[2]]
    return f"{match[1]}.{part}.{data}" if match[3] else f"{match[1]}.{part}"
