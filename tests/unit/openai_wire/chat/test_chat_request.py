"""Chat bodies to ChatRequests."""

from typing import Any

import pytest
from corral.inference.v1 import chat_pb2, inference_service_pb2

from openai_wire.chat.chat_request import chat_request, parse_chat
from openai_wire.errors import error_body
from svc_kit.errors import DomainError

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"z": 1, "a": 2}}}
PIXEL = "data:image/png;base64,iVBORw=="


def a_request(**fields: Any) -> inference_service_pb2.ChatRequest:
    """The request that a body with these fields becomes."""
    return chat_request(parse_chat({"model": "m", "messages": [USER]} | fields))


def refusal_of(**fields: Any) -> tuple[str, str]:
    """The param and code that a body with these fields is refused with."""
    with pytest.raises(DomainError) as caught:
        a_request(**fields)
    error: Any = error_body(caught.value)["error"]
    return error["param"], error["code"]


def test_nothing_given_means_openai_defaults() -> None:
    """Temperature 1, top_p 1 and no other filter; everything else is left to the model."""
    request = a_request()

    sampling = request.options.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1, 1, 0, 0)
    assert {field.name for field, _ in sampling.ListFields()} == {
        "temperature", "top_p", "top_k", "min_p"
    }  # fmt: skip
    assert not request.options.stopping.HasField("max_tokens")
    assert not request.options.HasField("constraint")
    assert not request.conversation.HasField("tool_choice")


def test_determinism_is_passed_on() -> None:
    """A local extension: unset leaves it unset."""
    assert a_request(deterministic=True).options.deterministic
    assert not a_request().options.HasField("deterministic")


def test_null_means_not_given() -> None:
    """A null is the same as an absent field, for fields that are not supported too."""
    plain = a_request()

    assert a_request(temperature=None, stop=None, functions=None, nonsense=None) == plain


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": []}, "messages", "empty_array"),
        ({"messages": "hi"}, "messages", "invalid_type"),
        ({"messages": [1]}, "messages[0]", "invalid_type"),
        ({"messages": [{}]}, "messages[0].role", "missing_required_parameter"),
        ({"messages": [{"role": "bob"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": 1}]}, "messages[0].role", "invalid_type"),
        (
            {"messages": [{"role": "function", "content": "x"}]},
            "messages[0].role",
            "unsupported_value",
        ),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        (
            {"messages": [USER, {"role": "user", "content": 5}]},
            "messages[1].content",
            "invalid_type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "missing_required_parameter",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
            "messages[0].content[0].type",
            "invalid_value",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]},
            "messages[0].content[0].type",
            "unsupported_value",
        ),
        ({"messages": [USER | {"extra": 1}]}, "messages[0].extra", "unknown_parameter"),
        (
            {"messages": [USER | {"tool_calls": [{"id": "c", "function": {"name": "f"}}]}]},
            "messages[0].tool_calls[0].function.arguments",
            "missing_required_parameter",
        ),
        ({"messages": [USER | {"refusal": "no"}]}, "messages[0].refusal", "invalid_value"),
        (
            {"messages": [{"role": "assistant"}]},
            "messages[0].content",
            "missing_required_parameter",
        ),
        (
            {"messages": [{"role": "assistant", "function_call": {"name": "f"}}]},
            "messages[0].function_call",
            "unsupported_parameter",
        ),
        (
            {"messages": [{"role": "tool", "content": "42"}]},
            "messages[0].tool_call_id",
            "missing_required_parameter",
        ),
        (
            {"dry_sequence_breakers": ["é" * 20, "é" * 21]},
            "dry_sequence_breakers[1]",
            "string_above_max_length",
        ),
        ({"seed": float(2**64)}, "seed", "integer_above_max_value"),
        ({"seed": float(-(2**64))}, "seed", "integer_below_min_value"),
        ({"max_tokens": 1e30}, "max_tokens", "integer_above_max_value"),
        ({"max_tokens": 1.0}, "max_tokens", "invalid_type"),
        ({"max_tokens": float("inf")}, "max_tokens", "invalid_type"),
        ({"model": None}, "model", "missing_required_parameter"),
        ({"model": 5}, "model", "invalid_type"),
        ({"nonsense": 1}, "nonsense", "unknown_parameter"),
        ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
        ({"audio": {"voice": "x"}}, "audio", "unsupported_parameter"),
        ({"prediction": {"type": "audio"}}, "prediction.type", "invalid_value"),
        ({"prediction": {"type": "content"}}, "prediction.content", "missing_required_parameter"),
        ({"prediction": {"type": "content", "content": 5}}, "prediction.content", "invalid_type"),
        ({"web_search_options": {}}, "web_search_options", "unsupported_parameter"),
        ({"n_probs": 5}, "n_probs", "unsupported_parameter"),
        ({"modalities": ["text", "audio"]}, "modalities", "unsupported_value"),
        ({"store": True}, "store", "unsupported_value"),
        ({"stream": "yes"}, "stream", "invalid_type"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
            "unsupported_value",
        ),
        (
            {"stream": True, "stream_options": {"nonsense": True}},
            "stream_options.nonsense",
            "unknown_parameter",
        ),
        ({"n": 0}, "n", "integer_below_min_value"),
        ({"n": 129}, "n", "integer_above_max_value"),
        ({"n": 1.5}, "n", "invalid_type"),
        ({"n": True}, "n", "invalid_type"),
        ({"temperature": "1"}, "temperature", "invalid_type"),
        ({"temperature": -0.5}, "temperature", "decimal_below_min_value"),
        ({"top_p": 1.5}, "top_p", "decimal_above_max_value"),
        ({"frequency_penalty": 2.5}, "frequency_penalty", "decimal_above_max_value"),
        ({"max_tokens": -1}, "max_tokens", "integer_below_min_value"),
        ({"max_tokens": 2**31}, "max_tokens", "integer_above_max_value"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "invalid_value"),
        ({"seed": 2**70}, "seed", "integer_above_max_value"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
        ({"stop": ["a"] * 17}, "stop", "array_above_max_length"),
        ({"stop": ["ok", "é" * 129]}, "stop[1]", "string_above_max_length"),
        ({"stop": [1]}, "stop[0]", "invalid_type"),
        ({"stop": 5}, "stop", "invalid_type"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "integer_above_max_value"),
        ({"logit_bias": {str(2**31): 1}}, "logit_bias", "integer_above_max_value"),
        ({"logit_bias": [["text", 1]]}, "logit_bias[0][0]", "invalid_type"),
        ({"logit_bias": [[1]]}, "logit_bias[0]", "invalid_type"),
        ({"logit_bias": [[1, True]]}, "logit_bias[0][1]", "invalid_type"),
        ({"logit_bias": [[1, 101]]}, "logit_bias[0][1]", "integer_above_max_value"),
        ({"samplers": ["top_k", "magic"]}, "samplers[1]", "unsupported_value"),
        ({"mirostat": 3}, "mirostat", "integer_above_max_value"),
        ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repetition_penalty", "invalid_value"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type", "unsupported_value"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
        ({"tools": [TOOL] * 129}, "tools", "array_above_max_length"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tool_choice": "sometimes"}, "tool_choice", "invalid_value"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
            "invalid_value",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function"}},
            "tool_choice.function",
            "missing_required_parameter",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}},
            "tool_choice.allowed_tools",
            "missing_required_parameter",
        ),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema.schema",
            "missing_required_parameter",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        (
            {"response_format": {"type": "json_object"}, "grammar": "root ::= [0-9]"},
            "grammar",
            "invalid_value",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "invalid_value"),
        ({"reasoning_effort": "none", "enable_thinking": True}, "enable_thinking", "invalid_value"),
        (
            {"chat_template_kwargs": {"enable_thinking": "yes"}},
            "chat_template_kwargs.enable_thinking",
            "invalid_type",
        ),
        ({"add_generation_prompt": False}, "add_generation_prompt", "unsupported_value"),
    ],
)
def test_a_bad_field_is_named(fields: dict[str, Any], param: str, code: str) -> None:
    """Each problem is refused with the path of its field and OpenAI's code for its kind."""
    assert refusal_of(**fields) == (param, code)


@pytest.mark.parametrize("url", ["http://host/x.png", "https://host/x.png", "file:///etc/passwd"])
def test_images_are_never_fetched(url: str) -> None:
    """No URL but a data URL is accepted, because no request may make the server connect."""
    part = {"type": "image_url", "image_url": {"url": url}}

    assert refusal_of(messages=[{"role": "user", "content": [part]}]) == (
        "messages[0].content[0].image_url.url",
        "unsupported_value",
    )


def test_bad_base64_is_refused() -> None:
    """A data URL must hold base64."""
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,???"}}

    assert refusal_of(messages=[{"role": "user", "content": [part]}]) == (
        "messages[0].content[0].image_url.url",
        "invalid_value",
    )


def test_known_metadata_is_ignored() -> None:
    """Fields that cannot change the answer are accepted and leave no trace."""
    metadata = {
        "user": "u",
        "metadata": {"a": "b"},
        "safety_identifier": "s",
        "service_tier": "auto",
        "verbosity": "low",
        "store": False,
        "prompt_cache_retention": "24h",
        "modalities": ["text"],
    }

    assert a_request(**metadata) == a_request()


def test_a_prediction_is_one_text() -> None:
    """Its parts are joined; null is none."""
    parts = [{"type": "text", "text": "def "}, {"type": "text", "text": "f():"}]
    said = [
        a_request(prediction={"type": "content", "content": content}).options.speculation.prediction
        for content in ("def f():", parts)
    ]

    assert said == ["def f():", "def f():"]
    assert a_request(prediction=None) == a_request()


def test_values_that_ask_for_nothing_pass() -> None:
    """Unsupported extensions pass while their value is the one without effect."""
    neutral = {"n_probs": 0, "id_slot": -1, "suffix": "", "echo": False, "use_beam_search": False}

    assert a_request(**neutral) == a_request()


def test_a_message_of_ours_can_be_sent_back() -> None:
    """A turn as this server answers it is a valid turn of the history, reasoning included."""
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    turn = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "reasoning_content": "hm",
        "tool_calls": [call | {"index": 0}],
    }
    answer = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "42"}]}

    messages = a_request(messages=[USER, turn, answer]).conversation.messages

    assert messages[1] == chat_pb2.ChatMessage(
        role=chat_pb2.ROLE_ASSISTANT,
        reasoning="hm",
        tool_calls=[chat_pb2.ToolCall(id="c1", name="look", arguments_json="{}")],
    )
    assert messages[2] == chat_pb2.ChatMessage(
        role=chat_pb2.ROLE_TOOL,
        tool_call_id="c1",
        parts=[chat_pb2.ContentPart(text="42")],
    )


def test_media_become_bytes() -> None:
    """Data URLs and base64 sounds travel as bytes with their type."""
    parts = [
        {"type": "text", "text": "what?"},
        {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "AAEC", "format": "wav"}},
    ]

    (message,) = a_request(messages=[{"role": "user", "content": parts}]).conversation.messages

    image, audio = message.parts[1].image, message.parts[2].audio
    assert (image.data, image.media_type, image.detail) == (b"\x89PNG", "image/png", "low")
    assert (audio.data, audio.media_type) == (b"\x00\x01\x02", "audio/wav")


def test_tools_keep_the_order_of_their_schema() -> None:
    """A schema travels as JSON text with its keys in the caller's order."""
    (tool,) = a_request(tools=[TOOL]).conversation.tools

    assert (tool.name, tool.parameters_json) == ("look", '{"z":1,"a":2}')


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        ("none", chat_pb2.ToolChoice.MODE_NONE, []),
        ("auto", chat_pb2.ToolChoice.MODE_AUTO, []),
        ("required", chat_pb2.ToolChoice.MODE_REQUIRED, []),
        (
            {"type": "function", "function": {"name": "look"}},
            chat_pb2.ToolChoice.MODE_REQUIRED,
            ["look"],
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "look"}}],
                },
            },
            chat_pb2.ToolChoice.MODE_AUTO,
            ["look"],
        ),
    ],
)
def test_every_tool_choice_is_typed(
    choice: Any, mode: chat_pb2.ToolChoice.Mode, names: list[str]
) -> None:
    """All of OpenAI's forms become a mode and the tools allowed."""
    typed = a_request(tools=[TOOL], tool_choice=choice).conversation.tool_choice

    assert (typed.mode, list(typed.allowed_names)) == (mode, names)


def test_parallel_tool_calls_travel() -> None:
    """A limit to one call at a time reaches the service."""
    typed = a_request(tools=[TOOL], parallel_tool_calls=False).conversation.tool_choice

    assert typed.HasField("parallel")
    assert not typed.parallel


@pytest.mark.parametrize(
    ("fields", "form", "text"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", True),
        (
            {"response_format": {"type": "json_object", "schema": {"type": "object"}}},
            "json_schema",
            '{"type":"object"}',
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"z": 1}}}},
            "json_schema",
            '{"z":1}',
        ),
        ({"json_schema": {"b": 1, "a": 2}}, "json_schema", '{"b":1,"a":2}'),
        ({"grammar": "root ::= [0-9]"}, "gbnf", "root ::= [0-9]"),
        ({"structured_outputs": {"regex": "[0-9]"}}, "regex", "[0-9]"),
        ({"structured_outputs": {"json": {"a": 1}}}, "json_schema", '{"a":1}'),
    ],
)
def test_every_constraint_is_typed(fields: dict[str, Any], form: str, text: object) -> None:
    """OpenAI's, llama-server's and vLLM's forms become one constraint."""
    constraint = a_request(**fields).options.constraint

    assert constraint.WhichOneof("form") == form
    assert getattr(constraint, form) == text


def test_text_is_no_constraint() -> None:
    """The format "text" asks for nothing."""
    assert not a_request(response_format={"type": "text"}).options.HasField("constraint")


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 5}, 5),
        ({"n_predict": 0}, 0),
    ],
)
def test_the_output_limit_has_three_names(fields: dict[str, Any], limit: int) -> None:
    """Each name sets the limit, and names that agree may stand together."""
    stopping = a_request(**fields).options.stopping

    assert stopping.HasField("max_tokens")
    assert stopping.max_tokens == limit


def test_a_negative_limit_of_llama_server_means_none() -> None:
    """n_predict -1 leaves the limit to the context."""
    assert not a_request(n_predict=-1).options.stopping.HasField("max_tokens")


def test_logprobs_ask_for_the_chosen_token_alone() -> None:
    """logprobs without top_logprobs asks for no alternatives; without logprobs nothing is asked."""
    asked = a_request(logprobs=True).options.output

    assert asked.HasField("top_logprobs")
    assert asked.top_logprobs == 0
    assert a_request(logprobs=True, top_logprobs=3).options.output.top_logprobs == 3
    assert not a_request(logprobs=False).options.output.HasField("top_logprobs")


@pytest.mark.parametrize(
    ("fields", "thinking", "kwargs"),
    [
        ({}, None, ""),
        ({"reasoning_effort": "none"}, False, ""),
        ({"enable_thinking": True}, True, ""),
        ({"chat_template_kwargs": {"enable_thinking": False, "x": 1}}, False, '{"x":1}'),
        ({"reasoning_effort": "low"}, None, '{"reasoning_effort":"low"}'),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
            None,
            '{"reasoning_effort":"high"}',
        ),
    ],
)
def test_thinking_reaches_the_template(
    fields: dict[str, Any], thinking: bool | None, kwargs: str
) -> None:
    """Every way to ask for, or against, thinking becomes the template's options."""
    template = a_request(**fields).conversation.template

    given = template.enable_thinking if template.HasField("enable_thinking") else None
    assert (given, template.kwargs_json) == (thinking, kwargs)


def test_reasoning_may_stay_in_the_content() -> None:
    """The format "none" leaves thinking where the model wrote it."""
    assert a_request(reasoning_format="none").reasoning_format == (chat_pb2.REASONING_FORMAT_INLINE)
    assert a_request(reasoning_format="auto").reasoning_format == (
        chat_pb2.REASONING_FORMAT_SEPARATE
    )


def test_a_template_and_continuation_travel() -> None:
    """The caller's template and its wish to continue reach the service, which decides."""
    template = a_request(
        chat_template="T", continue_final_message=True, add_generation_prompt=False
    ).conversation.template

    assert (template.template, template.continue_final_message) == ("T", True)


def test_long_cache_hints_become_digests() -> None:
    """A hint over the proto's limit still tells equal keys from different ones."""
    short = a_request(prompt_cache_key="k", cache_salt="s", cache_prompt=False).options.cache
    long = a_request(prompt_cache_key="k" * 500).options.cache

    assert (short.affinity, short.salt, short.reuse) == ("k", "s", False)
    assert len(long.affinity) == 64
    assert long == a_request(prompt_cache_key="k" * 500).options.cache


def test_adapters_keep_their_order_and_scales() -> None:
    """LoRA adapters are named in order; an absent scale is left to the adapter."""
    first, second = a_request(lora=[{"id": "a", "scale": 0.5}, {"id": "b"}]).options.adapters

    assert (first.adapter, first.scale) == ("a", 0.5)
    assert second.adapter == "b"
    assert not second.HasField("scale")


def test_speculation_is_switched_and_bounded() -> None:
    """An extension with the names of the proto; left out, the server decides."""
    asked = a_request(speculation={"enabled": False, "max_draft_tokens": 4}).options.speculation

    assert (asked.enabled, asked.max_draft_tokens) == (False, 4)
    assert asked.HasField("enabled")
    assert not a_request(speculation={"max_draft_tokens": 4}).options.speculation.HasField(
        "enabled"
    )
    assert not a_request().options.HasField("speculation")


@pytest.mark.parametrize(
    ("speculation", "field"),
    [
        ({"max_draft_tokens": 33}, "speculation.max_draft_tokens"),
        ({"enabled": "no"}, "speculation.enabled"),
        ({"model": "m"}, "speculation.model"),
    ],
)
def test_wrong_speculation_is_refused_by_its_field(speculation: object, field: str) -> None:
    """As everything else is."""
    with pytest.raises(DomainError) as caught:
        a_request(speculation=speculation)

    assert caught.value.metadata["field"] == field
