"""Errors in OpenAI's envelope, with the caller's field names."""

import pytest

from dialects.openai.errors import (
    CHAT_PARAMS,
    COMPLETION_PARAMS,
    RESPONSE_PARAMS,
    ParamNames,
    openai_name,
    with_openai_names,
    with_prompt_number,
)
from svc_kit.errors import (
    ContextLengthExceeded,
    InvalidArgument,
    MissingField,
    ModelNotFound,
    OutOfRange,
    TooShort,
)


@pytest.mark.parametrize(
    ("field", "names", "expected"),
    [
        ("prompt", CHAT_PARAMS, "messages"),
        ("prompt", COMPLETION_PARAMS, "prompt"),
        ("text", COMPLETION_PARAMS, "prompt"),
        ("token_ids.ids[3]", COMPLETION_PARAMS, "prompt[3]"),
        ("messages", RESPONSE_PARAMS, "input"),
        ("prompt", RESPONSE_PARAMS, "input"),
        ("new_response.settings.tools[0].function.name", RESPONSE_PARAMS, "tools[0].name"),
        ("conversation.tools[1].parameters_json", RESPONSE_PARAMS, "tools[1].parameters"),
        ("tools[0].file_search.filters", RESPONSE_PARAMS, "tools[0].filters"),
        ("text.format.json_schema.schema", RESPONSE_PARAMS, "text.format.schema"),
        ("model", CHAT_PARAMS, "model"),
        ("options.sampling.temperature", CHAT_PARAMS, "temperature"),
        ("sampling.penalty_last_n", CHAT_PARAMS, "repeat_last_n"),
        ("options.sampling.dry.base", CHAT_PARAMS, "dry_base"),
        ("adaptive.target", CHAT_PARAMS, "adaptive_target"),
        ("options.num_choices", CHAT_PARAMS, "n"),
        ("adapters[1].adapter", CHAT_PARAMS, "lora[1].id"),
        ("adapters[1].scale", CHAT_PARAMS, "lora[1].scale"),
        ("options.stopping.stop[2]", CHAT_PARAMS, "stop[2]"),
        ("options.output.top_logprobs", CHAT_PARAMS, "top_logprobs"),
        ("options.output.top_logprobs", COMPLETION_PARAMS, "logprobs"),
        ("options.constraint.json_schema", CHAT_PARAMS, "response_format"),
        ("options.cache.salt", CHAT_PARAMS, "cache_salt"),
        ("conversation.messages[1].parts[0].text", CHAT_PARAMS, "messages[1].content[0].text"),
        ("messages[0].parts[2].image", CHAT_PARAMS, "messages[0].content[2].image_url"),
        ("messages[0].parts[2].audio", CHAT_PARAMS, "messages[0].content[2].input_audio"),
        ("messages[0].content[2].image.data", CHAT_PARAMS, "messages[0].content[2].image_url.url"),
        ("messages[0].parts[2].image.url", CHAT_PARAMS, "messages[0].content[2].image_url.url"),
        ("messages[0].parts[2].audio.data", CHAT_PARAMS, "messages[0].content[2].input_audio.data"),
        ("messages[1].content[0].document", CHAT_PARAMS, "messages[1].content[0].file"),
        (
            "messages[1].content[0].document.data",
            CHAT_PARAMS,
            "messages[1].content[0].file.file_data",
        ),
        ("messages[0].content", CHAT_PARAMS, "messages[0].content"),
        ("tools[0].parameters_json", CHAT_PARAMS, "tools[0].function.parameters"),
        ("conversation.tools[1].name", CHAT_PARAMS, "tools[1].function.name"),
        ("conversation.template.kwargs_json", CHAT_PARAMS, "chat_template_kwargs"),
        ("template.enable_thinking", CHAT_PARAMS, "enable_thinking"),
    ],
)
def test_proto_field_names_are_translated(field: str, names: ParamNames, expected: str) -> None:
    """To the field names of the HTTP API."""
    assert openai_name(field, names) == expected


def test_a_translated_error_keeps_everything_else() -> None:
    error = ContextLengthExceeded(field="prompt", prompt_tokens=5000, context_tokens=4096)

    renamed = with_openai_names(error, CHAT_PARAMS)

    assert renamed == ContextLengthExceeded(
        field="messages", prompt_tokens=5000, context_tokens=4096
    )
    assert "maximum context length is 4096 tokens" in renamed.message
    assert "resulted in 5000 tokens" in renamed.message


def test_a_translated_error_keeps_the_time_to_wait() -> None:
    """Of a reason of another release."""
    error = InvalidArgument.with_reason(
        reason="NEW", message="m", metadata={"field": "prompt"}, retry_after=8.0
    )

    assert with_openai_names(error, CHAT_PARAMS).retry_after == 8.0


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("prompt", "prompt[1]"),
        ("token_ids", "prompt[1]"),
        ("token_ids.ids[3]", "prompt[1][3]"),
        ("temperature", "temperature"),
        ("prompt_cache_key", "prompt_cache_key"),
    ],
)
def test_prompt_errors_contain_the_index_of_the_prompt(field: str, name: str) -> None:
    """Errors about other fields are unchanged."""
    error = with_prompt_number(OutOfRange(field=field, value=1), 1)

    assert with_openai_names(error, COMPLETION_PARAMS) == OutOfRange(field=name, value=1)


def test_a_missing_prompt_of_several_is_reported_as_empty() -> None:
    """Other missing fields are unchanged."""
    empty = TooShort(field="prompt[1]", length=0, minimum=1, unit="characters")
    not_found = ModelNotFound(model="m")

    assert with_prompt_number(MissingField(field="prompt"), 1) == empty
    assert with_prompt_number(MissingField(field="seed"), 1) == MissingField(field="seed")
    assert with_prompt_number(not_found, 1) is not_found


def test_an_unknown_reason_is_translated() -> None:
    """It keeps reason and message."""
    error = InvalidArgument.with_reason(
        reason="NEW_THING", message="New.", metadata={"field": "options.num_choices"}
    )

    renamed = with_openai_names(error, CHAT_PARAMS)

    assert (renamed.reason, renamed.message, renamed.field) == ("NEW_THING", "New.", "n")


def test_an_error_without_a_field_is_unchanged() -> None:
    """The same object is returned."""
    error = ModelNotFound(model="m")

    assert with_openai_names(error, CHAT_PARAMS) is error
