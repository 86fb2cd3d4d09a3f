"""Chats over upstreams in text mode: the fields of OpenAI's API, and the deltas of answers."""

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, cast

import orjson
import pytest
from corral.inference.v1 import generation_pb2 as pb
from corral.inference.v1 import inference_service_pb2 as service_pb
from google.protobuf.json_format import ParseDict

from inference_svc.engine.events import (
    CallPart,
    ChosenLogprob,
    Delta,
    Finished,
    FinishReason,
    Logprob,
    MessagePart,
    Timings,
)
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Sampling
from inference_svc.engine_client.client import EngineClient
from inference_svc.engine_client.features import NEUTRAL_SAMPLING, Features
from inference_svc.limits.limiter import Need
from inference_svc.media.document import DocumentReader
from inference_svc.media.fetcher import MediaFetcher
from inference_svc.model_pool.catalog import LoadedModel, TextProcessor
from inference_svc.rpc.call import Call, Caller
from inference_svc.rpc.chat_turn import MessageTurn
from inference_svc.rpc.media_inputs import MediaInputs
from inference_svc.rpc.prompts import to_conversation
from inference_svc.rpc.request_options import ignored_in_text_mode, text_need, text_requests
from inference_svc.upstream.openai import FEATURES
from svc_kit.auth.principal import Principal, Priority
from svc_kit.errors import (
    DomainError,
    FeatureUnsupported,
    InvalidField,
    InvalidJson,
    TooLong,
    UnsupportedField,
)
from tests.support.pictures import gif, noise_png

SERVICE: Final = Principal(
    project="p",
    scopes=frozenset({"inference"}),
    priority=Priority.INTERACTIVE,
    key_id="k",
    is_service=True,
)
HI: Final = {"messages": [{"role": "ROLE_USER", "parts": [{"text": "Hi"}]}]}


def make_call(fields: dict[str, Any], context: int = 0) -> Call[service_pb.ChatRequest]:
    request = ParseDict({"conversation": HI, **fields}, service_pb.ChatRequest())
    engine = SimpleNamespace(ready=SimpleNamespace(slot_tokens=context, features=FEATURES))
    loaded = LoadedModel(TextProcessor("m", NEUTRAL_SAMPLING), cast(EngineClient, engine))
    return Call(request, loaded, Caller(SERVICE, "r", None), "owner")


def convert(
    fields: dict[str, Any],
    defaults: Sampling = NEUTRAL_SAMPLING,
    features: Features = FEATURES,
) -> list[SequenceRequest]:
    """Convert a request and check it, as the service does."""
    call = make_call(fields)
    conversation = to_conversation(call.request.conversation, allows_templates=True)
    requests = text_requests(call, conversation, defaults)
    for each in requests:
        features.check(each)
    return requests


def sent(fields: dict[str, Any]) -> dict[str, Any]:
    """What the engine gets, beside a user's message."""
    (request,) = convert(fields)
    chat: dict[str, Any] = json.loads(orjson.dumps(request.chat))
    return {name: value for name, value in chat.items() if name != "messages"}


def test_messages_pass_as_openai_writes_them() -> None:
    call = {"id": "c", "name": "f", "arguments_json": '{"x": 1}'}
    messages = [
        {"role": "ROLE_DEVELOPER", "parts": [{"text": "Be brief."}]},
        {"role": "ROLE_USER", "name": "Ann", "parts": [{"text": "a"}, {"text": "b"}]},
        {"role": "ROLE_ASSISTANT", "reasoning": "why", "tool_calls": [call]},
        {"role": "ROLE_TOOL", "tool_call_id": "c", "parts": [{"text": "1"}, {"text": "2"}]},
        {"role": "ROLE_ASSISTANT", "parts": [{"refusal": "No."}]},
        {"role": "ROLE_USER", "parts": [{"text": "c"}]},
    ]
    (request,) = convert({"conversation": {"messages": messages}})
    function = {"name": "f", "arguments": '{"x": 1}'}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert request.chat == {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": parts, "name": "Ann"},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "why",
                "tool_calls": [{"id": "c", "type": "function", "function": function}],
            },
            {"role": "tool", "content": "1\n2", "tool_call_id": "c"},
            {"role": "assistant", "content": "No."},
            {"role": "user", "content": "c"},
        ]
    }


PICTURE: Final = noise_png(1)


def part(data: bytes, kind: str = "image", **more: str) -> dict[str, Any]:
    return {kind: {"data": base64.b64encode(data).decode(), **more}}


async def test_pictures_pass_as_data_urls_with_the_type_of_their_bytes() -> None:
    """In their places among the texts; they count a fixed number of tokens each."""
    parts = [
        {"text": "What"},
        part(PICTURE, media_type="image/jpeg"),
        part(gif(1, 1), detail="low"),
        {"text": "is this?"},
    ]
    (request,) = await read_and_convert({"role": "ROLE_USER", "parts": parts})
    urls = [
        f"data:image/{name};base64,{base64.b64encode(data).decode()}"
        for name, data in (("png", PICTURE), ("gif", gif(1, 1)))
    ]
    sent_parts = json.loads(orjson.dumps(request.chat))["messages"][0]["content"]
    assert sent_parts == [
        {"type": "text", "text": "What"},
        {"type": "image_url", "image_url": {"url": urls[0]}},
        {"type": "image_url", "image_url": {"url": urls[1], "detail": "low"}},
        {"type": "text", "text": "is this?"},
    ]
    assert request.media_bytes == sum(len(url.partition(",")[2]) for url in urls)
    text_tokens = request.num_prompt_tokens - 2 * 1024
    assert 0 < text_tokens < 100


@pytest.mark.parametrize(
    ("message", "error", "name"),
    [
        ({"parts": [part(b"RIFF", "audio")]}, UnsupportedField, "content[0].audio"),
        ({"parts": [{"text": "a"}, part(b"<svg/>")]}, InvalidField, "content[1].image"),
        ({"parts": [part(b"")]}, InvalidField, "content[0].image"),
        ({"parts": [part(PICTURE + bytes(20_000_000))]}, TooLong, "content[0].image"),
        ({"role": "ROLE_SYSTEM", "parts": [part(PICTURE)]}, FeatureUnsupported, "role 'system'"),
    ],
    ids=["a sound", "another format", "nothing", "too much", "a system message"],
)
async def test_pictures_that_no_engine_takes_are_refused_by_name(
    message: dict[str, Any], error: type[DomainError], name: str
) -> None:
    with pytest.raises(error, match=re.escape(name)):
        await read_and_convert({"role": "ROLE_USER", **message})


async def read_and_convert(message: dict[str, Any]) -> list[SequenceRequest]:
    """The requests of a message with files."""
    inputs = MediaInputs(cast(MediaFetcher, None), cast(DocumentReader, None))
    call = make_call({"conversation": {"messages": [message]}})
    conversation = to_conversation(call.request.conversation, allows_templates=False)
    conversation = await inputs.read_for_engine(conversation)
    return text_requests(call, conversation, NEUTRAL_SAMPLING)


TOOLS: Final = [
    {"name": "f", "description": "F.", "parameters_json": '{"type": "object"}', "strict": True},
    {"name": "g"},
]
F: Final = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "F.",
        "parameters": {"type": "object"},
        "strict": True,
    },
}
G: Final = {"type": "function", "function": {"name": "g"}}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, {"tools": [F, G]}),
        ({"mode": "MODE_NONE"}, {"tools": [F, G], "tool_choice": "none"}),
        ({"mode": "MODE_REQUIRED"}, {"tools": [F, G], "tool_choice": "required"}),
        (
            {"mode": "MODE_REQUIRED", "allowed_names": ["g"]},
            {"tools": [G], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        ),
        ({"mode": "MODE_AUTO", "allowed_names": ["f"]}, {"tools": [F]}),
        ({"parallel": False}, {"tools": [F, G], "parallel_tool_calls": False}),
    ],
    ids=["unset", "none", "required", "named", "allowed", "one-at-a-time"],
)
def test_only_tools_that_may_be_called_are_sent(
    choice: dict[str, Any] | None, expected: dict[str, Any]
) -> None:
    given_choice = {} if choice is None else {"tool_choice": choice}
    assert sent({"conversation": {**HI, "tools": TOOLS, **given_choice}}) == expected


def test_what_openai_has_a_field_for_is_sent() -> None:
    options = {
        "sampling": {"temperature": 0.7, "top_p": 1, "frequency_penalty": 0.5, "seed": 2**31 + 5},
        "stopping": {"max_tokens": 9, "stop": ["x"]},
        "constraint": {"json_schema": '{"const": 1}'},
    }
    template = {"reasoning_effort": "REASONING_EFFORT_LOW"}
    schema = {"name": "answer", "schema": {"const": 1}, "strict": True}
    assert sent({"options": options, "conversation": {**HI, "template": template}}) == {
        "temperature": 0.7,
        "top_p": 1.0,
        "frequency_penalty": 0.5,
        "max_tokens": 9,
        "stop": ["x"],
        "seed": 5,
        "response_format": {"type": "json_schema", "json_schema": schema},
        "reasoning_effort": "low",
    }


def test_what_is_unset_is_left_to_the_engine() -> None:
    """But for what the operator set."""
    assert sent({}) == {}
    (request,) = convert({}, Sampling(**{**vars_of(NEUTRAL_SAMPLING), "temperature": 0.2}))
    assert (request.chat or {})["temperature"] == 0.2


def vars_of(sampling: Sampling) -> dict[str, Any]:
    return {name: getattr(sampling, name) for name in Sampling.__slots__}


def test_schemas_are_sent_digit_for_digit() -> None:
    """Integers of more than 64 bits, and halves of characters, too."""
    text = '{"const": 123456789012345678901234567890, "title": "\\ud800"}'
    tools = [{"name": "f", "parameters_json": text}]
    found = sent(
        {"conversation": {**HI, "tools": tools}, "options": {"constraint": {"json_schema": text}}}
    )
    assert found["tools"][0]["function"]["parameters"] == json.loads(text)
    assert found["response_format"]["json_schema"]["schema"] == json.loads(text)


def test_any_json_object_is_a_format_of_its_own() -> None:
    found = sent({"options": {"constraint": {"json_object": True}}})
    assert found == {"response_format": {"type": "json_object"}}
    assert sent({"options": {"constraint": {"json_object": False}}}) == {}


def test_several_choices_are_several_requests_with_seeds_of_their_own() -> None:
    requests = convert({"options": {"num_choices": 3, "sampling": {"seed": 7}}})
    assert [(each.chat or {})["seed"] for each in requests] == [7, 8, 9]
    assert [each.choice for each in requests] == [0, 1, 2]


REFUSED: Final[dict[str, Any]] = {
    "sampling.dynatemp_range": 0.5,
    "sampling.dynatemp_exponent": None,  # acts only with the range
    "sampling.top_k": 5,
    "sampling.min_p": 0.5,
    "sampling.typical_p": 0.5,
    "sampling.top_n_sigma": 1,
    "sampling.xtc_probability": 0.5,
    "sampling.xtc_threshold": None,  # acts only with the probability
    "sampling.min_keep": 2,
    "sampling.penalty_last_n": None,  # 64 is the default; acts only with penalties
    "sampling.repetition_penalty": 1.5,
    "sampling.dry": {"multiplier": 1},
    "sampling.mirostat": {"version": 2},
    "sampling.adaptive": {"target": 0.5},
    "sampling.logit_bias": [{"token_id": 1, "bias": 1}],
    "sampling.allowed_token_ids": [1],
    "sampling.samplers": ["SAMPLER_KIND_TOP_P", "SAMPLER_KIND_PENALTIES"],
    "stopping.min_tokens": 1,
    "stopping.stop_token_ids": [1],
    "stopping.ignore_eos": True,
    "stopping.include_stop": True,
    "output.top_logprobs": 0,
    "output.prompt_logprobs": 0,
    "output.special_tokens": True,
    "output.prompt_token_ids": True,
    "constraint.regex": "a",
    "constraint.lark": "start: A",
    "constraint.gbnf": "root ::= a",
    "constraint.choices": {"values": ["a"]},
    "cache.keep": True,
    "adapters": [{"adapter": "a"}],
    "resume": [{"index": 0}],
    "deterministic": True,
    "thinking_budget_tokens": 5,
}
SENT: Final = {
    *("sampling.temperature", "sampling.top_p", "sampling.seed"),
    *("sampling.frequency_penalty", "sampling.presence_penalty"),
    *("stopping.max_tokens", "stopping.stop", "num_choices"),
    *("constraint.json_schema", "constraint.json_object"),
}
HINTS: Final = {
    *("cache.reuse", "cache.salt", "cache.affinity", "cache.keep_for", "label"),
    *("scheduling.priority", "scheduling.queue_timeout"),
    *("speculation.enabled", "speculation.max_draft_tokens", "speculation.prediction"),
    "output.interval_ms",
}
"""And what Corral does itself."""
NAMED: Final = {"output.token_ids"}
"""What is named as ignored."""
_GROUPS: Final = ("sampling", "stopping", "output", "constraint", "cache", "scheduling")


def leaves(descriptor: Any) -> Iterator[str]:
    for field in descriptor.fields:
        if field.name in (*_GROUPS, "speculation") and field.message_type is not None:
            yield from (f"{field.name}.{name}" for name in leaves(field.message_type))
        else:
            yield field.name


def test_each_option_is_sent_or_refused_or_a_hint() -> None:
    """A new one must be in one of the lists."""
    assert {*leaves(pb.GenerationOptions.DESCRIPTOR)} == {*REFUSED} | SENT | HINTS | NAMED


@pytest.mark.parametrize("path", [path for path, value in REFUSED.items() if value is not None])
def test_what_openai_has_no_field_for_is_refused_by_name(path: str) -> None:
    group, _, name = path.rpartition(".")
    value = {name: REFUSED[path]}
    with pytest.raises(FeatureUnsupported) as refused:
        convert({"options": {group: value} if group else value})
    assert (
        f"'{name}" in refused.value.message
        or f"'{path}" in refused.value.message
        or name
        in (
            "prompt_token_ids",
            "top_logprobs",
        )
    )


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"reasoning_format": "REASONING_FORMAT_INLINE"}, "reasoning_format"),
        ({"options": {"stopping": {"max_tokens": 0}}}, "max_tokens"),
        ({"conversation": {**HI, "template": {"kwargs_json": "{}"}}}, "chat_template_kwargs"),
        ({"conversation": {**HI, "template": {"template": "x"}}}, "chat_template"),
        (
            {"conversation": {"messages": [{"role": "ROLE_ASSISTANT", "parts": [{"text": "a"}]}]}},
            "continue_final_message",
        ),
        (
            {
                "conversation": {
                    **HI,
                    "template": {"enable_thinking": True, "require_thinking": True},
                }
            },
            "require_thinking",
        ),
    ],
)
def test_templates_and_formats_of_ours_are_refused_by_name(
    fields: dict[str, Any], name: str
) -> None:
    with pytest.raises(FeatureUnsupported, match=name):
        convert(fields)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"stopping": {"stop": [""]}}, InvalidField),
        ({"constraint": {"json_schema": "{"}}, InvalidJson),
        ({"cache": {"keep_for": "o", "reuse": False}}, InvalidField),
    ],
)
def test_invalid_fields_are_refused_before_anything_is_sent(
    options: dict[str, Any], error: type[DomainError]
) -> None:
    with pytest.raises(error):
        convert({"options": options})


def test_what_has_no_effect_is_named() -> None:
    call = make_call(
        {
            "options": {"output": {"token_ids": True}},
            "conversation": {**HI, "template": {"enable_thinking": False}},
        }
    )
    conversation = to_conversation(call.request.conversation, allows_templates=False)
    assert ignored_in_text_mode(call, conversation) == ["enable_thinking", "output.token_ids"]


@pytest.mark.parametrize(
    ("context", "max_tokens", "expected"), [(0, 0, 4096), (0, 7, 7), (64, 0, 50), (8, 0, 0)]
)
def test_limits_reserve_an_estimate(context: int, max_tokens: int, expected: int) -> None:
    """A token for four bytes of the JSON of the messages."""
    stopping = {"max_tokens": max_tokens} if max_tokens else {}
    call = make_call({"options": {"stopping": stopping}}, context)
    conversation = to_conversation(call.request.conversation, allows_templates=False)
    (request,) = text_requests(call, conversation, NEUTRAL_SAMPLING)
    assert (
        request.num_prompt_tokens == len('{"messages":[{"role":"user","content":"Hi"}]}') // 4 + 1
    )
    if context == 64:
        expected = 64 - request.num_prompt_tokens
    assert text_need(call, request) == Need(request.num_prompt_tokens, expected, 1)


@pytest.mark.parametrize("count", [0, 3])
def test_log_probabilities_are_asked_for_where_the_engine_tells_them(count: int) -> None:
    told = replace(FEATURES, max_logprobs=3)
    (request,) = convert({"options": {"output": {"top_logprobs": count}}}, features=told)
    assert request.top_logprobs == count
    with pytest.raises(FeatureUnsupported, match="'logprobs' above 3"):
        convert({"options": {"output": {"top_logprobs": 4}}}, features=told)


# --- answers --------------------------------------------------------------------------------------


def delta_of(*parts: MessagePart) -> Delta:
    return Delta(0, (), (), (), 0.0, parts, len(parts))


def test_calls_beyond_the_first_are_dropped_where_one_is_allowed() -> None:
    turn = MessageTurn(0, max_calls=1)
    calls = tuple(CallPart(position, f"id{position}", "f", "{}") for position in range(2))
    (response,) = turn.delta(delta_of(MessagePart(calls=calls)))
    assert [each.id for each in response.delta.tool_calls] == ["id0"]


@pytest.mark.parametrize(
    ("reason", "has_calls", "expected"),
    [
        (FinishReason.STOP, False, pb.FINISH_REASON_STOP),
        (FinishReason.STOP, True, pb.FINISH_REASON_TOOL_CALLS),
        (FinishReason.LENGTH, True, pb.FINISH_REASON_LENGTH),
    ],
)
def test_a_turn_that_stops_with_calls_awaits_their_results(
    reason: FinishReason, has_calls: bool, expected: int
) -> None:
    turn = MessageTurn(0)
    if has_calls:
        turn.delta(delta_of(MessagePart(calls=(CallPart(0, "a", "f", "{}"),))))
    assert turn.reason(Finished(0, reason, None, None, 1, Timings(0, 0, 0))) == expected


def test_log_probabilities_are_in_the_delta_of_their_content() -> None:
    """What is reasoning has a delta of its own behind a content."""
    chosen = ChosenLogprob(Logprob(0, b"a", -0.5), (Logprob(0, b"b", -1.5),), text=b"a")
    parts = MessagePart("", "a", (), (chosen,)), MessagePart("", "a", (), (chosen,))
    first, second = MessageTurn(0).delta(delta_of(*parts, MessagePart("why")))
    assert [(each.chosen.token, each.top[0].token) for each in first.delta.logprobs] == [
        (b"a", b"b")
    ] * 2
    assert (first.delta.content, second.delta.reasoning) == ("aa", "why")
    assert not second.delta.logprobs
