"""Chat bodies to ChatRequests."""

import json
from typing import Any

import pytest
from corral.inference.v1 import chat_pb2, inference_service_pb2
from corral.inference.v1.generation_pb2 import TextChoices

from dialects.anthropic.message_request import message_request, parse_message
from dialects.openai.chat.chat_request import body_reasoning, chat_request, parse_chat
from dialects.openai.errors import error_body
from dialects.shared.parameters import ParameterReport, parameter_report
from svc_kit.errors import DomainError

USER: dict[str, Any] = {"role": "user", "content": "hi"}
ASSISTANT: dict[str, Any] = {"role": "assistant"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"z": 1, "a": 2}}}
NAMED = {"type": "function", "function": {"name": "look"}}
PART = "messages[0].content[0]"


def user_part(part: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [part]}


def make_request(**fields: Any) -> inference_service_pb2.ChatRequest:
    return chat_request(parse_chat({"model": "m", "messages": [USER]} | fields))


def rejection(**fields: Any) -> tuple[str, str]:
    with pytest.raises(DomainError) as caught:
        make_request(**fields)
    error: Any = error_body(caught.value)["error"]
    return error["param"], error["code"]


def test_defaults_are_openais() -> None:
    """Temperature 1, top_p 1 and no other filter; other fields are unset."""
    request = make_request()

    sampling = request.options.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1, 1, 0, 0)
    assert {field.name for field, _ in sampling.ListFields()} == {
        "temperature", "top_p", "top_k", "min_p"
    }  # fmt: skip
    assert not request.options.stopping.HasField("max_tokens")
    assert not request.options.HasField("constraint")
    assert not request.conversation.HasField("tool_choice")


def test_deterministic_is_passed_on() -> None:
    """If unset, it stays unset."""
    assert make_request(deterministic=True).options.deterministic
    assert not make_request().options.HasField("deterministic")


def test_null_means_not_given() -> None:
    """Also for unsupported and unknown fields."""
    plain = make_request()

    assert make_request(temperature=None, stop=None, functions=None, nonsense=None) == plain


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
            {"messages": [USER | {"role": "function"}]},
            "messages[0].name",
            "missing_required_parameter",
        ),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"messages": [USER, USER | {"content": 5}]}, "messages[1].content", "invalid_type"),
        ({"messages": [user_part({"type": "text"})]}, f"{PART}.text", "missing_required_parameter"),
        ({"messages": [user_part({"type": "video"})]}, f"{PART}.type", "invalid_value"),
        (
            {"messages": [user_part({"type": "file", "file": {}})]},
            f"{PART}.file.file_data",
            "missing_required_parameter",
        ),
        ({"messages": [USER | {"extra": 1}]}, "messages[0].extra", "unknown_parameter"),
        (
            {"messages": [ASSISTANT | {"tool_calls": [{"id": "c", "function": {"name": "f"}}]}]},
            "messages[0].tool_calls[0].function.arguments",
            "missing_required_parameter",
        ),
        (
            {"messages": [ASSISTANT | {"tool_calls": [{"id": "c", "type": "custom"}]}]},
            "messages[0].tool_calls[0].custom",
            "missing_required_parameter",
        ),
        ({"messages": [USER | {"refusal": "no"}]}, "messages[0].refusal", "unsupported_parameter"),
        (
            {"messages": [USER | {"tool_calls": [{"id": "c"}]}]},
            "messages[0].tool_calls",
            "unsupported_parameter",
        ),
        ({"messages": [ASSISTANT]}, "messages[0].content", "missing_required_parameter"),
        (
            {"messages": [ASSISTANT | {"function_call": {"name": "f"}}]},
            "messages[0].function_call.arguments",
            "missing_required_parameter",
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
        ({"audio": {"voice": "x"}}, "audio", "unsupported_parameter"),
        ({"prediction": {"type": "audio"}}, "prediction.type", "invalid_value"),
        ({"prediction": {"type": "content"}}, "prediction.content", "missing_required_parameter"),
        ({"prediction": {"type": "content", "content": 5}}, "prediction.content", "invalid_type"),
        ({"web_search_options": {}}, "web_search_options", "unsupported_parameter"),
        ({"n_probs": 21}, "n_probs", "integer_above_max_value"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "unsupported_parameter"),
        (
            {"tools": [{"type": "function", "function": {"name": "x" * 129}}]},
            "tools[0].function.name",
            "string_above_max_length",
        ),
        ({"modalities": ["text", "audio"]}, "modalities", "unsupported_value"),
        ({"stream": "yes"}, "stream", "invalid_type"),
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
        ({"max_tokens": -2}, "max_tokens", "integer_below_min_value"),
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
        (
            {"response_format": {"type": "json_object", "value": {}, "schema": {}}},
            "response_format.value",
            "invalid_value",
        ),
        ({"guided_choice": []}, "guided_choice", "empty_array"),
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex", "invalid_value"),
        ({"reasoning_effort": "none", "enable_thinking": True}, "enable_thinking", "invalid_value"),
        ({"reasoning_effort": "low", "think": "high"}, "think", "invalid_value"),
        (
            {"thinking_token_budget": 1, "thinking": {"type": "enabled", "budget_tokens": 2}},
            "thinking_token_budget",
            "invalid_value",
        ),
        (
            {"chat_template_kwargs": {"enable_thinking": "yes"}},
            "chat_template_kwargs.enable_thinking",
            "invalid_type",
        ),
        ({"safe_prompt": True}, "safe_prompt", "unsupported_parameter"),
        ({"tool_choice": "all", "tools": [TOOL]}, "tool_choice", "invalid_value"),
        ({"tool_choice": "any"}, "tool_choice", "invalid_value"),
        ({"add_generation_prompt": False}, "add_generation_prompt", "unsupported_value"),
    ],
)
def test_an_invalid_field_is_rejected(fields: dict[str, Any], param: str, code: str) -> None:
    """The error has the path of the field and OpenAI's code."""
    assert rejection(**fields) == (param, code)


def test_fields_without_effect_are_accepted() -> None:
    """The request is the same."""
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

    assert make_request(**metadata) == make_request()


def test_parts_of_a_prediction_are_joined() -> None:
    """Null means no prediction."""
    parts = [{"type": "text", "text": "def "}, {"type": "text", "text": "f():"}]
    predictions = [
        make_request(
            prediction={"type": "content", "content": content}
        ).options.speculation.prediction
        for content in ("def f():", parts)
    ]

    assert predictions == ["def f():", "def f():"]
    assert make_request(prediction=None) == make_request()


def test_neutral_values_of_unsupported_fields_are_accepted() -> None:
    """The request is the same."""
    neutral = {"n_probs": 0, "id_slot": -1, "suffix": "", "echo": False, "use_beam_search": False}

    assert make_request(**neutral) == make_request()


def test_n_probs_is_another_name_for_log_probabilities() -> None:
    """llama-server's. With it and without it the response has OpenAI's form."""
    assert make_request(n_probs=3) == make_request(logprobs=True, top_logprobs=3)
    assert make_request(n_probs=3, logprobs=True) == make_request(logprobs=True)


def test_names_of_tools_have_up_to_128_characters() -> None:
    """In Anthropic's form too."""
    name = "mcp__server.of-many__" + "x" * 107
    chat = make_request(tools=[{"type": "function", "function": {"name": name}}])
    body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}
    tools = [{"name": name, "input_schema": {}}]
    message = message_request(parse_message(body | {"tools": tools})).proto

    assert chat.conversation.tools[0].name == message.conversation.tools[0].name == name


@pytest.mark.parametrize(
    "added",
    [
        {"parsed": {"a": 1}},
        {"provider_specific_fields": {"refusal": None}},
        {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": ""}]},
        {"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
        {"status": "completed", "cache_control": {"type": "ephemeral"}},
        {"tool_calls": None, "function_call": None, "audio": None, "annotations": [], "name": None},
    ],
)
def test_fields_that_clients_add_to_answers_are_ignored(added: dict[str, Any]) -> None:
    function = {"name": "look", "arguments": "{}"}
    call: dict[str, Any] = {"id": "c1", "type": "function", "function": function}
    seen = call | {"index": 0, "function": {**function, "parsed_arguments": {}}}
    part: dict[str, Any] = {"type": "text", "text": "42"}
    plain = [
        USER,
        ASSISTANT | {"content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [part]},
        ASSISTANT | {"content": [part]},
    ]
    sent = [
        USER,
        ASSISTANT | added | {"content": "hm", "tool_calls": [seen | added]},
        {"role": "tool", "tool_call_id": "c1", "content": [part | added], **added},
        ASSISTANT | added | {"content": [part | added]},
    ]

    assert make_request(messages=sent) == make_request(messages=plain)


@pytest.mark.parametrize(
    ("turn", "reasoning"),
    [
        ({"content": "a", "reasoning_content": "hm", "reasoning": "other"}, "hm"),
        ({"content": "a", "reasoning_content": "", "reasoning": "other"}, "other"),
        ({"content": None, "reasoning": "cut off"}, "cut off"),
        ({"content": [], "reasoning": "cut off"}, "cut off"),
        ({"reasoning_content": "cut off"}, "cut off"),
        ({"content": None}, ""),
        ({"content": []}, ""),
    ],
)
def test_reasoning_is_played_back(turn: dict[str, Any], reasoning: str) -> None:
    """By both names; an answer may have no content, if it says so or has reasoning."""
    message = make_request(messages=[USER, ASSISTANT | turn]).conversation.messages[1]

    assert message.reasoning == reasoning
    assert [part.text for part in message.parts] == [turn.get("content") or ""]


@pytest.mark.parametrize("content", [None, [], ""])
def test_a_result_may_be_empty(content: object) -> None:
    """As that of a command that writes nothing, in both forms of calls."""
    function = {"name": "run", "arguments": "{}"}
    call = {"id": "c1", "type": "function", "function": function}
    results = [
        [ASSISTANT | {"tool_calls": [call]}, {"role": "tool", "tool_call_id": "c1"}],
        [ASSISTANT | {"function_call": function}, {"role": "function", "name": "run"}],
    ]
    for turn, result in results:
        request = make_request(messages=[USER, turn, result | {"content": content}])
        assert [part.text for part in request.conversation.messages[2].parts] == [""]


def test_a_call_of_a_custom_tool_is_played_back_as_a_function() -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "sh", "input": "ls"}}
    message = make_request(messages=[USER, ASSISTANT | {"tool_calls": [call]}])

    assert message.conversation.messages[1].tool_calls == [
        chat_pb2.ToolCall(id="c1", name="sh", arguments_json='{"input":"ls"}')
    ]


def test_schemas_keep_the_order_of_keys() -> None:
    """Parameters are JSON text."""
    (tool,) = make_request(tools=[TOOL]).conversation.tools

    assert (tool.name, tool.parameters_json) == ("look", '{"z":1,"a":2}')


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        ("none", chat_pb2.ToolChoice.MODE_NONE, []),
        ("auto", chat_pb2.ToolChoice.MODE_AUTO, []),
        ("required", chat_pb2.ToolChoice.MODE_REQUIRED, []),
        (NAMED, chat_pb2.ToolChoice.MODE_REQUIRED, ["look"]),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}},
            chat_pb2.ToolChoice.MODE_AUTO,
            ["look"],
        ),
    ],
)
def test_tool_choices_are_converted(
    choice: Any, mode: chat_pb2.ToolChoice.Mode, names: list[str]
) -> None:
    proto = make_request(tools=[TOOL], tool_choice=choice).conversation.tool_choice

    assert (proto.mode, list(proto.allowed_names)) == (mode, names)


def test_parallel_tool_calls_are_passed_on() -> None:
    """False limits the answer to one call at a time."""
    proto = make_request(tools=[TOOL], parallel_tool_calls=False).conversation.tool_choice

    assert proto.HasField("parallel")
    assert not proto.parallel


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
        ({"structured_outputs": {"json": '{"b": 1}'}}, "json_schema", '{"b": 1}'),
        ({"guided_json": {"a": 1}}, "json_schema", '{"a":1}'),
        ({"guided_json": '{"b": 1}'}, "json_schema", '{"b": 1}'),
        ({"guided_regex": "[0-9]"}, "regex", "[0-9]"),
        ({"guided_grammar": "root ::= [0-9]"}, "gbnf", "root ::= [0-9]"),
        ({"guided_choice": ["a", "b"]}, "choices", TextChoices(values=["a", "b"])),
    ],
)
def test_constraints_are_converted(fields: dict[str, Any], form: str, text: object) -> None:
    """In the formats of OpenAI, llama-server and vLLM."""
    constraint = make_request(**fields).options.constraint

    assert constraint.WhichOneof("form") == form
    assert getattr(constraint, form) == text


@pytest.mark.parametrize(
    "fields", [{"response_format": {"type": "text"}}, {"grammar": ""}, {"guided_grammar": ""}]
)
def test_text_and_an_empty_grammar_are_no_constraint(fields: dict[str, Any]) -> None:
    """The constraint is unset, and another one may be given."""
    schema = {"type": "json_schema", "json_schema": {"schema": {"const": 2**63}}}
    both = {"response_format": schema, **fields}

    assert not make_request(**fields).options.HasField("constraint")
    if "response_format" not in fields:
        constraint = make_request(**both).options.constraint
        assert constraint.json_schema == '{"const":9223372036854775808}'
        body = parse_chat({"model": "m", "messages": [USER]} | both)
        assert body.constraint_field == "response_format"


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
    """Several names are allowed if they agree."""
    stopping = make_request(**fields).options.stopping

    assert stopping.HasField("max_tokens")
    assert stopping.max_tokens == limit


def test_a_negative_limit_means_no_limit() -> None:
    """As n_predict -1 in llama-server, which clients send under OpenAI's names too."""
    for name in ("n_predict", "max_tokens", "max_completion_tokens"):
        assert not make_request(**{name: -1}).options.stopping.HasField("max_tokens")


def test_mistrals_client_is_understood() -> None:
    """It sends a switch of Mistral's servers, off, and calls required tools any."""
    options = {"tools": [TOOL], "tool_choice": "required"}

    assert make_request(**options | {"tool_choice": "any"}, safe_prompt=False) == make_request(
        **options
    )


def test_labels_of_messages_and_formats_of_files_are_named() -> None:
    """They change nothing."""
    url = "data:image/png;base64,iVBORw0KGgo="
    picture = {"type": "image_url", "image_url": {"url": url}}
    labelled = {"type": "image_url", "image_url": {"url": url, "format": "image/png"}}
    report = ParameterReport()
    token = parameter_report.set(report)
    plain = make_request(messages=[user_part(picture), ASSISTANT | {"content": "a"}])
    report_before = report.names
    fields = {
        "messages": [user_part(labelled) | {"id": "u"}, ASSISTANT | {"content": "a", "id": "b"}]
    }
    same = make_request(
        **fields, ttl=60, session_id="s", reasoning={"exclude": True, "max_tokens": 5}
    )
    parameter_report.reset(token)

    assert report_before == ()
    assert set(report.names) == {
        "messages[].id", "messages[].content[].image_url.format", "ttl", "session_id",
        "reasoning.exclude",
    }  # fmt: skip
    assert same.options.thinking_budget_tokens == 5
    assert same.conversation.messages == plain.conversation.messages


SCHEMA = {"type": "object", "properties": {"b": {"const": 1}, "a": {"const": 1.5}}}


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA, indent=2)},
        {"structured_outputs": {"json": SCHEMA}},
        {"guided_json": SCHEMA, "json_schema": SCHEMA},
        {"response_format": {"type": "json_object", "value": SCHEMA}},
    ],
)
def test_a_constraint_may_have_several_names(fields: dict[str, Any]) -> None:
    """guidance sends a schema for several servers at once."""
    output = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}

    named = make_request(**{"response_format": output} | fields)

    assert named == make_request(response_format=output)


@pytest.mark.parametrize(
    "other",
    [
        {"type": "object", "properties": {"a": {"const": 1.5}, "b": {"const": 1}}},
        {"type": "object", "properties": {"b": {"const": True}, "a": {"const": 1.5}}},
        {"type": "object", "properties": {"b": {"const": 1.0}, "a": {"const": 1.5}}},
        {"type": "object", "properties": {"b": {"const": "1"}, "a": {"const": 1.5}}},
        "{",
        "[" * 100_000,
        '{"const": ' + "9" * 5000 + "}",
    ],
)
def test_constraints_that_differ_are_refused(other: Any) -> None:
    """In the order of members, which answers have, and in the type of a value."""
    assert rejection(json_schema=SCHEMA, guided_json=other) == ("guided_json", "invalid_value")


def test_logprobs_have_no_alternatives_by_default() -> None:
    output = make_request(logprobs=True).options.output

    assert output.HasField("top_logprobs")
    assert output.top_logprobs == 0
    assert make_request(logprobs=True, top_logprobs=3).options.output.top_logprobs == 3
    assert not make_request(logprobs=False).options.output.HasField("top_logprobs")


@pytest.mark.parametrize(
    ("fields", "thinking", "kwargs"),
    [
        ({}, None, ""),
        ({"reasoning_effort": "none"}, False, ""),
        ({"enable_thinking": True}, True, ""),
        ({"chat_template_kwargs": {"enable_thinking": False, "x": 1}}, False, '{"x":1}'),
        ({"think": True}, True, ""),
        ({"think": "none"}, False, ""),
        ({"thinking": {"type": "disabled"}}, False, ""),
        ({"thinking": {"type": "adaptive"}, "think": True}, True, ""),
        ({"reasoning": {"effort": "none"}}, False, ""),
        ({"reasoning_effort": "low"}, None, ""),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
            None,
            '{"reasoning_effort":"high"}',
        ),
    ],
)
def test_thinking_is_passed_to_the_template(
    fields: dict[str, Any], thinking: bool | None, kwargs: str
) -> None:
    template = make_request(**fields).conversation.template

    enabled = template.enable_thinking if template.HasField("enable_thinking") else None
    assert (enabled, template.kwargs_json) == (thinking, kwargs)


@pytest.mark.parametrize(
    ("fields", "effort", "budget"),
    [
        ({"reasoning_effort": "low"}, chat_pb2.REASONING_EFFORT_LOW, None),
        ({"think": "max"}, chat_pb2.REASONING_EFFORT_MAX, None),
        ({"reasoning": {"effort": "minimal"}}, chat_pb2.REASONING_EFFORT_MINIMAL, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, 0, 9),
        ({"thinking_token_budget": 0}, 0, 0),
    ],
)
def test_efforts_and_budgets_have_the_names_of_several_servers(
    fields: dict[str, Any], effort: int, budget: int | None
) -> None:
    """A budget is an option of the generation."""
    request = make_request(**fields)
    options = request.options

    has_budget = options.HasField("thinking_budget_tokens")
    assert request.conversation.template.reasoning_effort == effort
    assert (options.thinking_budget_tokens if has_budget else None) == budget


def test_errors_and_ignored_options_have_the_callers_names() -> None:
    body = parse_chat(
        {
            "model": "m",
            "messages": [{"role": "user", "content": "q"}],
            "think": "low",
            "thinking": {"type": "enabled", "budget_tokens": 1},
        }
    )

    assert body_reasoning(body).names == {
        "reasoning_effort": "think",
        "enable_thinking": "thinking",
        "thinking_budget_tokens": "thinking.budget_tokens",
    }


def test_reasoning_format_none_keeps_reasoning_in_the_content() -> None:
    assert make_request(reasoning_format="none").reasoning_format == (
        chat_pb2.REASONING_FORMAT_INLINE
    )
    assert make_request(reasoning_format="auto").reasoning_format == (
        chat_pb2.REASONING_FORMAT_SEPARATE
    )


def test_template_options_are_passed_on() -> None:
    """The chat template and continuation."""
    template = make_request(
        chat_template="T", continue_final_message=True, add_generation_prompt=False
    ).conversation.template

    assert (template.template, template.continue_final_message) == ("T", True)


def test_long_cache_hints_are_hashed() -> None:
    """Equal keys have equal digests."""
    short = make_request(prompt_cache_key="k", cache_salt="s", cache_prompt=False).options.cache
    long = make_request(prompt_cache_key="k" * 500).options.cache

    assert (short.affinity, short.salt, short.reuse) == ("k", "s", False)
    assert len(long.affinity) == 64
    assert long == make_request(prompt_cache_key="k" * 500).options.cache


def test_adapters_are_passed_on_in_order() -> None:
    """An absent scale stays unset."""
    first, second = make_request(lora=[{"id": "a", "scale": 0.5}, {"id": "b"}]).options.adapters

    assert (first.adapter, first.scale) == ("a", 0.5)
    assert second.adapter == "b"
    assert not second.HasField("scale")


def test_speculation_is_passed_on() -> None:
    """Unset fields stay unset."""
    full = make_request(speculation={"enabled": False, "max_draft_tokens": 4}).options.speculation
    partial = make_request(speculation={"max_draft_tokens": 4}).options.speculation

    assert (full.enabled, full.max_draft_tokens) == (False, 4)
    assert full.HasField("enabled")
    assert not partial.HasField("enabled")
    assert not make_request().options.HasField("speculation")


@pytest.mark.parametrize(
    ("speculation", "field"),
    [
        ({"max_draft_tokens": 33}, "speculation.max_draft_tokens"),
        ({"enabled": "no"}, "speculation.enabled"),
        ({"model": "m"}, "speculation.model"),
    ],
)
def test_invalid_speculation_is_rejected(speculation: object, field: str) -> None:
    """The error has the path of the field."""
    with pytest.raises(DomainError) as caught:
        make_request(speculation=speculation)

    assert caught.value.metadata["field"] == field
