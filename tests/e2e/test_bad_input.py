"""Invalid requests are refused with a specific error before anything is computed.

Each kind of bad input is sent over gRPC and over HTTP where both can carry it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import httpx
import pytest
from corral.inference.v1 import chat_pb2, generation_pb2, sampling_pb2
from corral.inference.v1 import inference_service_pb2 as pb

from tests.support.plain_http import CHAT, COMPLETIONS, JSON, QUESTION, chat_body, error_of
from tests.support.rpc import (
    Rpc,
    expect_refusal,
    make_chat,
    make_completion,
    options,
    parse_error,
    read_error,
    user,
)
from tests.support.services import MODEL

pytestmark = pytest.mark.e2e

CONTEXT = 4096
INVALID = grpc.StatusCode.INVALID_ARGUMENT


# --- prompts --------------------------------------------------------------------------------------


async def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(
    rpc: Rpc, http: httpx.AsyncClient
) -> None:
    """Clients parse the numbers from the message to shorten the prompt."""
    text = "word " * CONTEXT
    counted = await rpc.inference.CountTokens(
        pb.CountTokensRequest(conversation=make_chat(user(text)).conversation)
    )
    error = await expect_refusal(rpc, make_chat(user(text)))
    response = await http.post(CHAT, json=chat_body(messages=[{"role": "user", "content": text}]))
    envelope = error_of(response)

    assert (error.code, error.reason) == (INVALID, "CONTEXT_LENGTH_EXCEEDED")
    assert error.metadata == {
        "field": "messages",
        "prompt_tokens": str(counted.prompt_tokens),
        "context_tokens": str(CONTEXT),
    }
    assert response.status_code == 400
    assert (envelope["code"], envelope["param"]) == ("context_length_exceeded", "messages")
    assert envelope["message"] == (
        f"This model's maximum context length is {CONTEXT} tokens. However, your messages resulted "
        f"in {counted.prompt_tokens} tokens. Please reduce the length of the messages."
    )


async def test_a_raw_prompt_over_the_context_is_refused_too(
    rpc: Rpc, http: httpx.AsyncClient
) -> None:
    """As token ids, which need no tokenizer."""
    ids = [5] * CONTEXT
    request = make_completion("")
    request.token_ids.ids.extend(ids)
    error = await expect_refusal(rpc, request)
    body = {"model": MODEL, "prompt": ids, "max_tokens": 1}
    response = await http.post(COMPLETIONS, json=body)

    assert (error.metadata["prompt_tokens"], error.metadata["field"]) == (str(CONTEXT), "prompt")
    assert error_of(response)["code"] == "context_length_exceeded"
    assert error_of(response)["param"] == "prompt"


async def test_empty_prompts_are_refused(rpc: Rpc, http: httpx.AsyncClient) -> None:
    """No messages, no text, no tokens."""
    no_tokens = pb.GenerateRequest(token_ids=pb.TokenIds(), options=options())
    errors = [
        await expect_refusal(rpc, pb.ChatRequest()),
        await expect_refusal(rpc, pb.GenerateRequest()),
        await expect_refusal(rpc, make_completion("")),
        await expect_refusal(rpc, no_tokens),
    ]
    chat = await http.post(CHAT, json=chat_body(messages=[]))
    text = await http.post(COMPLETIONS, json={"model": MODEL, "prompt": ""})
    none = await http.post(COMPLETIONS, json={"model": MODEL})

    assert {(error.code, error.reason) for error in errors} == {(INVALID, "MISSING_FIELD")}
    assert [error.metadata["field"] for error in errors] == ["messages"] + ["prompt"] * 3
    assert [chat.status_code, text.status_code, none.status_code] == [400] * 3
    assert [error_of(each)["param"] for each in (chat, text, none)] == [
        "messages",
        "prompt",
        "prompt",
    ]


async def test_tokens_outside_the_vocabulary_are_refused(rpc: Rpc, http: httpx.AsyncClient) -> None:
    """In prompts, stop tokens, biases and resumed output: each would abort llama.cpp."""
    beyond, bias = 2048, sampling_pb2.LogitBias(token_id=2048, bias=1)
    prompt = make_completion("")
    prompt.token_ids.ids.extend([5, beyond])
    resumed = generation_pb2.ResumedChoice(output_token_ids=[-1])
    requests: Sequence[pb.GenerateRequest | pb.ChatRequest] = [
        prompt,
        make_chat(stopping={"stop_token_ids": [beyond]}),
        make_chat(sampling={"logit_bias": [bias]}),
        make_chat(sampling={"allowed_token_ids": [beyond]}),
        make_chat(sampling={"seed": 1}, resume=[resumed]),
    ]
    errors = [await expect_refusal(rpc, request) for request in requests]
    response = await http.post(COMPLETIONS, json={"model": MODEL, "prompt": [5, beyond]})
    biased = await http.post(CHAT, json=chat_body(logit_bias={"2048": 1}))

    assert {error.reason for error in errors} == {"TOKEN_OUT_OF_VOCABULARY"}
    assert errors[0].metadata == {"field": "prompt", "token": "2048", "vocabulary_size": "2048"}
    assert (response.status_code, error_of(response)["param"]) == (400, "prompt")
    assert (biased.status_code, error_of(biased)["param"]) == (400, "logit_bias")


async def test_unknown_tokens_in_an_echoed_prompt_are_refused(http: httpx.AsyncClient) -> None:
    """By the call that detokenizes the echo, before anything is generated."""
    errors = [
        error_of(await http.post(COMPLETIONS, json={"model": MODEL, "prompt": ids, "echo": True}))
        for ids in ([2048], [[5], [2048]])
    ]

    assert {error["code"] for error in errors} == {"token_out_of_vocabulary"}
    assert [error["param"] for error in errors] == ["prompt", "prompt[1]"]


async def test_the_error_for_a_long_conversation_names_the_field(http: httpx.AsyncClient) -> None:
    """Like that for a text prompt."""
    text = "x" * 9_000_000
    chat = error_of(
        await http.post(CHAT, json=chat_body(messages=[{"role": "user", "content": text}]))
    )
    completion = error_of(await http.post(COMPLETIONS, json={"model": MODEL, "prompt": text}))

    assert [error["param"] for error in (chat, completion)] == ["messages", "prompt"]
    assert chat["message"] == completion["message"].replace("'prompt'", "'messages'")


# --- sampling and stopping ------------------------------------------------------------------------

FLOATS = (
    "temperature",
    "dynatemp_range",
    "dynatemp_exponent",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
async def test_non_finite_floats_are_refused(rpc: Rpc, value: float) -> None:
    """NaN and infinities in every float field."""
    requests = {name: make_chat(sampling={name: value}) for name in FLOATS}
    requests["dry.multiplier"] = make_chat(
        sampling={"dry": sampling_pb2.DryParams(multiplier=value)}
    )
    requests["mirostat.tau"] = make_chat(
        sampling={"mirostat": sampling_pb2.MirostatParams(version=2, tau=value)}
    )
    requests["logit_bias"] = make_chat(
        sampling={"logit_bias": [sampling_pb2.LogitBias(token_id=5, bias=value)]}
    )
    errors = {field: await expect_refusal(rpc, request) for field, request in requests.items()}

    assert {error.reason for error in errors.values()} == {"OUT_OF_RANGE"}
    assert [error.metadata["field"] for error in errors.values()] == list(requests)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_non_finite_numbers_in_json_are_refused(http: httpx.AsyncClient, text: str) -> None:
    """JSON does not have such numbers, although some parsers accept them."""
    body = f'{{"model": "{MODEL}", "messages": {QUESTION}, "temperature": {text}}}'
    response = await http.post(CHAT, content=body.replace("'", '"'), headers=JSON)

    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"


OUT_OF_RANGE: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "repeat_last_n": ({"penalty_last_n": CONTEXT + 1}, {"repeat_last_n": CONTEXT + 1}),
    "dry_penalty_last_n": (
        {"dry": sampling_pb2.DryParams(penalty_last_n=CONTEXT + 1)},
        {"dry_penalty_last_n": CONTEXT + 1},
    ),
    "dry_allowed_length": (
        {"dry": sampling_pb2.DryParams(allowed_length=CONTEXT + 1)},
        {"dry_allowed_length": CONTEXT + 1},
    ),
    "min_keep": ({"min_keep": 2049}, {"min_keep": 2049}),
    "temperature": ({"temperature": 100.5}, {"temperature": 100.5}),
    "top_p": ({"top_p": -0.5}, {"top_p": -0.5}),
    "xtc_threshold": ({"xtc_threshold": 1.5}, {"xtc_threshold": 1.5}),
    "presence_penalty": ({"presence_penalty": 2.5}, {"presence_penalty": 2.5}),
}


@pytest.mark.parametrize("param", OUT_OF_RANGE)
async def test_values_out_of_range_are_refused_with_the_limit(
    rpc: Rpc, http: httpx.AsyncClient, param: str
) -> None:
    """Such as windows above the context and probabilities above 1."""
    sampling, fields = OUT_OF_RANGE[param]
    error = await expect_refusal(rpc, make_chat(sampling=sampling))
    response = await http.post(CHAT, json=chat_body(**fields))
    limits = {error.metadata.get("minimum"), error.metadata.get("maximum")} - {None}

    assert (error.code, error.reason) == (INVALID, "OUT_OF_RANGE")
    assert limits
    assert response.status_code == 400
    assert error_of(response)["param"] == param
    assert any(limit in error_of(response)["message"] for limit in limits if limit)


async def test_too_many_choices_are_refused(rpc: Rpc, http: httpx.AsyncClient) -> None:
    """The limit is 128."""
    error = await expect_refusal(rpc, make_chat(num_choices=129))
    response = await http.post(CHAT, json=chat_body(n=129))

    assert (error.reason, error.metadata["maximum"]) == ("OUT_OF_RANGE", "128")
    assert error_of(response)["code"] == "integer_above_max_value"


async def test_stop_lists_over_the_limits_are_refused(rpc: Rpc, http: httpx.AsyncClient) -> None:
    """At most 16 texts, 256 bytes each (bytes, not characters), none empty."""
    stops, long_stop = [f"stop {number}" for number in range(17)], "ü" * 129
    errors = [
        await expect_refusal(rpc, make_chat(stopping={"stop": stops})),
        await expect_refusal(rpc, make_chat(stopping={"stop": [long_stop]})),
        await expect_refusal(rpc, make_chat(stopping={"stop": ["fine", ""]})),
        await expect_refusal(rpc, make_chat(stopping={"stop_token_ids": [5] * 65})),
    ]
    responses = [
        await http.post(CHAT, json=chat_body(stop=stops)),
        await http.post(CHAT, json=chat_body(stop=long_stop)),
    ]

    reasons = [error.reason for error in errors]
    assert reasons == ["TOO_LONG", "TOO_LONG", "INVALID_FIELD", "TOO_LONG"]
    assert [error.metadata.get("limit") for error in errors] == ["16", "256", None, "64"]
    assert [error_of(each)["code"] for each in responses] == [
        "array_above_max_length",
        "string_above_max_length",
    ]
    assert all(error_of(each)["param"].startswith("stop") for each in responses)


# --- texts ----------------------------------------------------------------------------------------


async def test_lone_surrogates_are_refused(http: httpx.AsyncClient) -> None:
    """They would abort llama.cpp's tokenizer."""
    body = b'{"model": "%b", "messages": [{"role": "user", "content": "\\ud83d"}]}'
    for path, sent in (
        (CHAT, body % MODEL.encode()),
        (COMPLETIONS, b'{"model": "%b", "prompt": "\\udc00"}' % MODEL.encode()),
    ):
        response = await http.post(path, content=sent, headers=JSON)

        assert response.status_code == 400
        assert error_of(response)["type"] == "invalid_request_error"


async def test_text_that_is_not_utf8_is_refused(rpc: Rpc) -> None:
    """In a protobuf string."""
    good = pb.GenerateRequest(text="????").SerializeToString()
    call: Any = rpc.channel.unary_stream("/corral.inference.v1.InferenceService/Generate")
    for broken in (b"\xff\xfe\xfd\xfc", b"\xed\xa0\xbd\x21", b"\xf0\x9f\x90\x00"):
        error = await read_error(call(good.replace(b"????", broken)))

        assert (error.code, error.reason) == (INVALID, "INVALID_FIELD")


async def test_an_invalid_protobuf_message_is_refused(rpc: Rpc) -> None:
    """With error details."""
    call: Any = rpc.channel.unary_unary("/corral.inference.v1.InferenceService/GetModel")
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call(b"\x0a\xff\xff\xff\xff")

    assert parse_error(failure.value).reason == "INVALID_FIELD"


@pytest.mark.parametrize(
    "body",
    [
        "",
        "not json",
        '{"model": "x"',
        "[]",
        '"text"',
        '{"model": "x", "messages": [], }',
        "[" * 100_000,
        '{"a":' * 50_000,
        "\x00",
    ],
    ids=["empty", "text", "cut", "list", "string", "comma", "deep list", "deep object", "nul"],
)
async def test_malformed_bodies_are_refused(http: httpx.AsyncClient, body: str) -> None:
    """With OpenAI's error envelope, not status 500."""
    response = await http.post(CHAT, content=body, headers=JSON)

    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"


WRONG_TYPES: Mapping[str, Any] = {
    "model": 7,
    "messages": "Hello",
    "messages[0]": ["Hello"],
    "messages[0].content": [{"role": "user", "content": 7}],
    "temperature": "hot",
    "n": 1.5,
    "stream": "yes",
    "stop": 7,
    "tools": {},
    "logit_bias": "5",
    "max_tokens": True,
}


@pytest.mark.parametrize("param", WRONG_TYPES)
async def test_wrong_types_are_refused_with_the_field(http: httpx.AsyncClient, param: str) -> None:
    """`param` is the field, `code` says that its type is wrong."""
    field = param.partition("[")[0]
    response = await http.post(CHAT, json=chat_body(**{field: WRONG_TYPES[param]}))

    assert response.status_code == 400
    assert (error_of(response)["param"], error_of(response)["code"]) == (param, "invalid_type")


async def test_invalid_conversations_are_refused(rpc: Rpc) -> None:
    """Unknown roles, tool turns without a call, schemas that are not JSON."""
    no_role = make_chat(chat_pb2.ChatMessage(parts=[chat_pb2.ContentPart(text="Hi")]))
    stray_result = chat_pb2.ChatMessage(
        role=chat_pb2.ROLE_TOOL, tool_call_id="x", parts=[chat_pb2.ContentPart(text="sunny")]
    )
    bad_schema = make_chat()
    bad_schema.conversation.tools.add(name="f", parameters_json="{")
    bad_kwargs = make_chat()
    bad_kwargs.conversation.template.kwargs_json = "[1]"
    fields = {
        "messages[0].role": no_role,
        "messages[1]": make_chat(user("Hi"), stray_result),
        "tools[0]": bad_schema,
        "chat_template_kwargs": bad_kwargs,
    }
    for field, request in fields.items():
        error = await expect_refusal(rpc, request)

        assert error.code is INVALID
        assert field in error.metadata["field"]
