"""Structured output over HTTP with the official SDK and over gRPC."""

import asyncio
import json
import re
from typing import Any

import grpc
import openai
import pytest
from corral.inference.v1 import chat_pb2, generation_pb2
from corral.inference.v1 import engine_service_pb2 as engine_pb
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from tests.support.rpc import (
    CAPITAL,
    PARIS,
    Rpc,
    make_chat,
    make_completion,
    parse_error,
    read_error,
    user,
)
from tests.support.services import MODEL

pytestmark = pytest.mark.e2e

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me about Mira."}]
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "patterns": (
        {"type": "string", "allOf": [{"pattern": f"^.*a.{{{n}}}b"} for n in range(30)]},
        "SCHEMA_INVALID",
    ),
    "a large divisor": ({"type": "integer", "multipleOf": 99_999_989}, "SCHEMA_INVALID"),
    "nesting": (json.loads('{"items":' * 150 + "{}" + "}" * 150), "SCHEMA_INVALID"),
    "many choices": ({"enum": [f"{n:09}" for n in range(30_000)]}, "TOO_LONG"),
}


def a_tool(name: str, **parameters: Any) -> ChatCompletionToolParam:
    schema: dict[str, object] = {
        "type": "object",
        "properties": parameters,
        "required": list(parameters),
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [
    a_tool("get_weather", city={"type": "string", "maxLength": 12}),
    a_tool("set_level", level={"type": "integer", "minimum": 1, "maximum": 9}),
]


# --- formats --------------------------------------------------------------------------------------


async def test_a_json_schema_shapes_the_answer(aclient: openai.AsyncOpenAI) -> None:
    """Each of several choices, at a high temperature, with its finish reason."""
    answer = await aclient.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        temperature=1.5,
        seed=4,
        n=3,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": PERSON, "strict": True},
        },
    )

    assert len(answer.choices) == 3
    for choice in answer.choices:
        person = json.loads(choice.message.content or "")
        assert list(person) == ["name", "age"]
        assert 0 <= person["age"] <= 120
        assert choice.finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 20


async def test_a_json_object_streams(aclient: openai.AsyncOpenAI) -> None:
    """Any object, in deltas."""
    async with aclient.chat.completions.stream(
        model=MODEL,
        messages=QUESTION,
        seed=2,
        max_tokens=300,
        response_format={"type": "json_object"},
    ) as stream:
        final = await stream.get_final_completion()
    choice = final.choices[0]

    assert (choice.message.content or "").startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content or ""), dict)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"grammar": 'root ::= [a-c] [0-9] "!"'}, r"[a-c][0-9]!"),
        ({"structured_outputs": {"regex": "[0-9]{4}-[0-9]{2}"}}, r"[0-9]{4}-[0-9]{2}"),
        ({"structured_outputs": {"choice": ["red", "grün"]}}, "red|grün"),
        ({"json_schema": {"const": {"a": [1, None]}}}, re.escape('{"a": [1, null]}')),
    ],
)
async def test_grammar_extensions_shape_completions(
    aclient: openai.AsyncOpenAI, fields: dict[str, Any], pattern: str
) -> None:
    """The fields of llama-server and vLLM, on the completions endpoint."""
    answer = await aclient.completions.create(
        model=MODEL, prompt="Mira", temperature=1.5, seed=1, extra_body=fields
    )

    assert re.fullmatch(pattern, answer.choices[0].text)
    assert answer.choices[0].finish_reason == "stop"


async def test_the_constraint_applies_after_the_reasoning(aclient: openai.AsyncOpenAI) -> None:
    """With thinking enabled the content has only the format."""
    answer = await aclient.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_tokens=300,
        extra_body={"enable_thinking": True},
        response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}},
    )
    message = answer.choices[0].message

    assert list(json.loads(message.content or "")) == ["name", "age"]
    assert message.model_extra is not None
    assert message.model_extra.get("reasoning_content")


async def test_grpc_accepts_every_format_and_resumes_it(rpc: Rpc) -> None:
    """All Constraint messages, and a stream that is resumed."""
    lark = generation_pb2.Constraint(lark="start: /[a-z]{9}/ /[0-9]{9}/")
    settings: dict[str, Any] = {
        "constraint": lark,
        "sampling": {"temperature": 1.5, "seed": 11},
        "output": {"token_ids": True},
    }
    full = await rpc.generate(make_completion("Mira", **settings))
    assert re.fullmatch("[a-z]{9}[0-9]{9}", full.text[0])
    assert full.finished[0].reason == generation_pb2.FINISH_REASON_STOP
    assert full.finished[0].WhichOneof("matched") is None

    tokens = full.tokens[0]
    resumed = generation_pb2.ResumedChoice(output_token_ids=tokens[:5])
    tail = await rpc.generate(make_completion("Mira", resume=[resumed], **settings))
    assert tail.tokens[0] == tokens[5:]


# --- tools ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
async def test_a_required_choice_calls_tools(aclient: openai.AsyncOpenAI, seed: int) -> None:
    """With known names and valid arguments, without text, at a high temperature."""
    answer = await aclient.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=1.5,
        seed=seed,
    )
    choice = answer.choices[0]
    (call,) = choice.message.tool_calls or []

    assert choice.finish_reason == "tool_calls"
    assert not choice.message.content
    assert call.type == "function"
    arguments = json.loads(call.function.arguments)
    assert (call.function.name, list(arguments)) in (
        ("get_weather", ["city"]),
        ("set_level", ["level"]),
    )


async def test_tools_constrain_calls_of_an_auto_choice(
    aclient: openai.AsyncOpenAI,
) -> None:
    """The model may call or answer; arguments of calls are valid, whether `strict` or not."""
    tool = a_tool("get_weather", city={"type": "string", "enum": ["Rome"]})
    strict = {"type": "function", "function": {**tool["function"], "strict": True}}

    async def ask(question: str, offered: Any) -> Any:
        answer = await aclient.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": question}],
            tools=[offered],
            temperature=0,
        )
        return answer.choices[0].message

    cities = []
    for offered in (tool, strict):
        (call,) = (await ask("What is the weather in Paris?", offered)).tool_calls
        cities.append(json.loads(call.function.arguments)["city"])
    answer = await ask(CAPITAL, strict)

    assert cities == ["Rome", "Rome"]
    assert PARIS in answer.content
    assert not answer.tool_calls


async def test_a_named_tool_streams(aclient: openai.AsyncOpenAI) -> None:
    """One call of the tool, whose arguments the SDK accumulates."""
    async with aclient.chat.completions.stream(
        model=MODEL,
        messages=QUESTION,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "set_level"}},
        temperature=1.5,
        seed=3,
    ) as stream:
        final = await stream.get_final_completion()
    choice = final.choices[0]
    (call,) = choice.message.tool_calls or []

    assert choice.finish_reason == "tool_calls"
    assert call.function.name == "set_level"
    assert 1 <= json.loads(call.function.arguments)["level"] <= 9


async def test_allowed_tools_limit_a_required_choice(rpc: Rpc) -> None:
    """Parallel calls, of the allowed tool only."""
    request = make_chat(
        user("Tell me about Mira."),
        sampling={"temperature": 1.5, "seed": 5},
        stopping={"max_tokens": 200},
    )
    for name in ("one", "two", "three"):
        schema = '{"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}'
        request.conversation.tools.append(chat_pb2.Tool(name=name, parameters_json=schema))
    request.conversation.tool_choice.mode = chat_pb2.ToolChoice.MODE_REQUIRED
    request.conversation.tool_choice.allowed_names.extend(["two", "three"])
    names = set()
    async for event in rpc.inference.Chat(request):
        names |= {call.name for call in event.delta.tool_calls if call.name}

    assert names
    assert names <= {"two", "three"}


# --- refusals -------------------------------------------------------------------------------------


async def test_the_error_for_an_invalid_schema_has_a_pointer(
    aclient: openai.AsyncOpenAI, rpc: Rpc
) -> None:
    """400 with OpenAI's code; a JSON pointer in the message and in gRPC's metadata."""
    schema: dict[str, object] = {"type": "object", "properties": {"a": {"type": "wat"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        await aclient.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
        )
    constraint = generation_pb2.Constraint(json_schema=json.dumps(schema))
    error = await read_error(rpc.inference.Chat(make_chat(constraint=constraint)))

    assert (caught.value.param, caught.value.code) == ("response_format", "invalid_json_schema")
    assert "#/properties/a" in caught.value.message
    assert error.metadata["pointer"] == "#/properties/a"


@pytest.mark.parametrize("name", HOSTILE)
async def test_an_expensive_schema_is_refused_and_blocks_no_stream(rpc: Rpc, name: str) -> None:
    """Before the engine gets it, while another stream runs."""
    schema, reason = HOSTILE[name]
    constraint = generation_pb2.Constraint(json_schema=json.dumps(schema))
    engine = (await rpc.engine.GetServerInfo(engine_pb.GetServerInfoRequest())).engine_restarts
    hostile = asyncio.create_task(refusal_reason(rpc, constraint))
    answers = 0
    while not hostile.done():
        await rpc.generate(make_completion("Mira", stopping={"max_tokens": 2}))
        answers += 1

    assert await hostile == reason
    assert answers > 0
    after = (await rpc.engine.GetServerInfo(engine_pb.GetServerInfoRequest())).engine_restarts
    assert after == engine


async def refusal_reason(rpc: Rpc, constraint: generation_pb2.Constraint) -> str:
    """Return the reason of the refusal of a constraint; empty if it is accepted."""
    try:
        await rpc.generate(make_completion("x", constraint=constraint, stopping={"max_tokens": 1}))
    except grpc.aio.AioRpcError as failure:
        return parse_error(failure).reason
    return ""
