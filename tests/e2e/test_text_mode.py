"""Corral in text mode in front of another Corral, of which it has only the OpenAI API."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc
import httpx
import openai
import pytest
from corral.inference.v1 import inference_service_pb2 as pb
from openai.types.responses import Response

from tests.e2e.conftest import CONTEXT_TOKENS
from tests.support.pictures import circle_png, data_url
from tests.support.rpc import CAPITAL, connect, user
from tests.support.sdk import WEATHER
from tests.support.sdk_batches import read_batch, start_batch, wait_for_batch
from tests.support.services import MODEL, RESTART_RETRIES, Corral, corral_up

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # the SDK deprecates Assistants
]

NAME: Final = "out"
SCHEMA: Final = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER_QUESTION: Final = "What is the weather in Paris?"


@pytest.fixture(scope="module")
def outer(up: Corral, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """One that has no tokenizer of the model of `up`."""
    upstream = {"urls": [up.api], "model": MODEL}
    folder = tmp_path_factory.mktemp("outer")
    with corral_up(folder, inference={"upstreams": {NAME: upstream}}) as corral:
        yield corral


@pytest.fixture
def client(outer: Corral) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=outer.api, api_key="unused", max_retries=0) as client:
        yield client


def chunks_of(corral: Corral, model: str, **body: Any) -> list[tuple[str, str]]:
    """The pieces of a streamed chat in order, each with what it belongs to, its reasons and counts,
    and the tokens with log probabilities."""
    found: list[tuple[str, str]] = []
    tokens: list[tuple[str, str]] = []
    fields = {"model": model, "temperature": 0, "stream": True, **body}
    fields["stream_options"] = {"include_usage": True}
    with httpx.stream("POST", f"{corral.api}/chat/completions", json=fields, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: {")]
    for chunk in map(json.loads, lines):
        for choice in chunk["choices"]:
            delta = choice["delta"]
            for name in ("reasoning_content", "content"):
                found += [(name, each) for each in delta.get(name) or ""]
            for call in delta.get("tool_calls") or ():
                function = call["function"]
                found += [("call", function["name"])] if function.get("name") else []
                found += [(f"arguments {call['index']}", each) for each in function["arguments"]]
            for token in (choice.get("logprobs") or {}).get("content") or ():
                names = [each["token"] for each in token["top_logprobs"]]
                tokens.append((token["token"], f"{token['logprob']:.4g} {names}"))
            found += [("reason", choice["finish_reason"])] if choice["finish_reason"] else []
        if usage := chunk.get("usage"):
            found.append(("usage", f"{usage['prompt_tokens']} {usage['completion_tokens']}"))
    assert bool(tokens) == ("logprobs" in body)
    return found + tokens


def ask(content: str = CAPITAL, **body: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **body}


CHATS: Final[dict[str, dict[str, Any]]] = {
    "an answer": ask(),
    "a system message": {
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": CAPITAL}]},
        ]
    },
    "reasoning": ask(reasoning_effort="low"),
    "a call": ask(WEATHER_QUESTION, tools=[WEATHER]),
    "a required call": ask(WEATHER_QUESTION, tools=[WEATHER], tool_choice="required"),
    "no call": ask(WEATHER_QUESTION, tools=[WEATHER], tool_choice="none", max_tokens=30),
    "the result of a call": {
        "messages": [
            {"role": "user", "content": WEATHER_QUESTION},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny, 21 C"},
        ],
        "tools": [WEATHER],
    },
    "a limit": ask(max_tokens=3),
    "log probabilities": ask(logprobs=True),
    "alternatives": ask(logprobs=True, top_logprobs=3),
    "log probabilities after reasoning": ask(reasoning_effort="low", logprobs=True),
    "a picture": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image_url", "image_url": {"url": data_url(circle_png("red"))}},
                ],
            }
        ]
    },
    "a stop text": ask(stop=["Paris"]),
    "a schema": ask(
        response_format={"type": "json_schema", "json_schema": {"name": "c", "schema": SCHEMA}},
        max_tokens=60,
    ),
    "a JSON object": ask(response_format={"type": "json_object"}, max_tokens=40),
    "seeds": ask("Tell me a story.", temperature=1, seed=5, max_tokens=30),
}


@pytest.mark.parametrize("body", CHATS.values(), ids=CHATS)
def test_what_the_inner_streams_the_outer_delivers(
    up: Corral, outer: Corral, body: dict[str, Any]
) -> None:
    """In the same order, with the same reasons and counts."""
    own = {"top_p": 1, "min_p": 0, "top_k": 0} if "seed" in body else {}
    expected = chunks_of(up, MODEL, **body, **own)
    assert chunks_of(outer, NAME, **body, **({"top_p": 1} if own else {})) == expected
    assert expected


def test_several_choices_are_answered(client: openai.OpenAI) -> None:
    """The prompt counts once, and the output of all."""
    one, two = (
        client.chat.completions.create(model=NAME, n=count, temperature=0, **ask())
        for count in (1, 2)
    )
    assert len({choice.message.content for choice in two.choices}) == 1
    assert two.usage is not None
    assert one.usage is not None
    assert two.usage.prompt_tokens == one.usage.prompt_tokens
    assert two.usage.completion_tokens == 2 * one.usage.completion_tokens


@pytest.mark.parametrize(
    ("field", "value"),
    [("top_k", 5), ("logit_bias", {"5": 1}), ("prompt_logprobs", 1), ("min_tokens", 3)],
)
def test_what_the_engine_would_not_get_is_refused_by_name(
    client: openai.OpenAI, field: str, value: Any
) -> None:
    with pytest.raises(openai.APIStatusError, match=field) as refused:
        client.chat.completions.create(model=NAME, extra_body={field: value}, **ask())
    assert refused.value.status_code == 501


async def test_what_needs_token_ids_is_refused(outer: Corral) -> None:
    """And `GetModel` says why."""
    async with outer.sdk() as sdk, connect(outer.target) as rpc:
        for call in (
            sdk.completions.create(model=NAME, prompt="a"),
            sdk.embeddings.create(model=NAME, input="a"),
            sdk.responses.input_tokens.count(model=NAME, input="a"),
        ):
            with pytest.raises(openai.APIStatusError, match="text mode") as refused:
                await call
            assert refused.value.status_code == 501
        conversation = pb.Conversation(messages=[user("a")])
        for answer in (
            rpc.inference.Tokenize(pb.TokenizeRequest(model=NAME, text="a")),
            rpc.inference.Detokenize(pb.DetokenizeRequest(model=NAME, token_ids=[1])),
            rpc.inference.RenderChat(pb.RenderChatRequest(model=NAME, conversation=conversation)),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match="text mode"):
                await answer
        model = (await rpc.inference.GetModel(pb.GetModelRequest(model=NAME))).model
    assert model.upstream.text_mode
    assert (model.chat_template, model.vocabulary_size) == ("", 0)


def test_too_long_a_prompt_is_an_error_of_the_request(client: openai.OpenAI) -> None:
    """As the engine tells it."""
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=NAME, **ask("word " * CONTEXT_TOKENS))
    assert refused.value.code == "context_length_exceeded"


def test_a_run_calls_a_tool_and_answers(client: openai.OpenAI) -> None:
    assistant = client.beta.assistants.create(model=NAME, tools=[WEATHER])
    message: Any = {"role": "user", "content": WEATHER_QUESTION}
    thread = client.beta.threads.create(messages=[message])
    run = client.beta.threads.runs.create_and_poll(
        thread_id=thread.id, assistant_id=assistant.id, poll_interval_ms=100
    )
    assert run.required_action is not None
    (call,) = run.required_action.submit_tool_outputs.tool_calls
    ended = client.beta.threads.runs.submit_tool_outputs_and_poll(
        run_id=run.id,
        thread_id=thread.id,
        tool_outputs=[{"tool_call_id": call.id, "output": "sunny, 21 C"}],
        poll_interval_ms=100,
    )
    newest = client.beta.threads.messages.list(thread.id).data[0]

    assert json.loads(call.function.arguments) == {"city": "Paris"}
    assert ended.status == "completed"
    assert "21" in newest.content[0].text.value  # type: ignore[union-attr]
    assert ended.usage is not None
    assert ended.usage.prompt_tokens > 100


def test_a_batch_runs_over_the_engine(client: openai.OpenAI, outer: Corral) -> None:
    lines = [
        {
            "custom_id": f"l{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": NAME, "temperature": 0, **ask()},
        }
        for number in range(3)
    ]
    batch = start_batch(client, lines)
    wait_for_batch(outer, batch.id)
    ended = read_batch(client, batch.id)

    answers = [line["response"]["body"]["choices"][0] for line in ended.completed.values()]
    assert len(answers) == 3
    assert all("Paris" in each["message"]["content"] for each in answers)


def test_a_conversation_goes_on_over_responses(client: openai.OpenAI) -> None:
    first = client.responses.create(model=NAME, input=CAPITAL, temperature=0)
    second = client.responses.create(
        model=NAME, input=CAPITAL, previous_response_id=first.id, background=True
    )
    with client.responses.retrieve(second.id, stream=True) as events:
        last = list(events)[-1]
    assert "Paris" in first.output_text
    assert last.type == "response.completed"


def test_other_dialects_answer(outer: Corral) -> None:
    """Messages and Ollama's chat."""
    messages = [{"role": "user", "content": CAPITAL}]
    body = {"model": NAME, "messages": messages, "stream": False}
    anthropic = httpx.post(f"{outer.api}/messages", json={**body, "max_tokens": 50}, timeout=60)
    ollama = httpx.post(f"{outer.url}/api/chat", json={**body, "options": {"temperature": 0}})
    assert "Paris" in anthropic.json()["content"][0]["text"]
    assert "Paris" in ollama.json()["message"]["content"]


def test_a_kill_of_one_of_two_urls_doubles_nothing(
    up: Corral, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of responses in the background: those that had shown nothing begin again at the other URL;
    others end with an error, and none has a text twice."""
    question, shown = "Tell me a story.", threading.Event()
    with (
        corral_up(tmp_path_factory.mktemp("inner")) as inner,
        corral_up(
            tmp_path_factory.mktemp("both"),
            inference={"upstreams": {NAME: {"urls": [inner.api, up.api], "model": MODEL}}},
        ) as both,
        openai.OpenAI(base_url=both.api, api_key="unused", max_retries=RESTART_RETRIES) as client,
    ):

        def respond(_: int) -> Response:
            with client.responses.create(
                model=NAME, input=question, temperature=0, background=True, stream=True
            ) as events:
                for event in events:
                    if event.type == "response.output_text.delta":
                        shown.set()
            return client.responses.retrieve(event.response.id)  # type: ignore[union-attr]

        whole = respond(0).output_text
        shown.clear()
        with ThreadPoolExecutor(8) as threads:
            running = threads.map(respond, range(16))
            assert shown.wait(60)
            os.kill(inner.program.member("serve gateway").pid, signal.SIGKILL)
            ended = list(running)
    assert len(whole) > 50
    assert {each.status for each in ended} <= {"completed", "failed"}
    for each in ended:
        if each.status == "completed":
            assert each.output_text == whole
        else:
            assert whole.startswith(each.output_text)
            assert each.error is not None
