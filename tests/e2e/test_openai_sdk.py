"""The official `openai` package with a real Corral and the demo model."""

from typing import Any

import openai
import pytest
from corral.inference.v1 import inference_service_pb2 as pb
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.conftest import ODD_NAME
from tests.support.rpc import CAPITAL, PARIS, Rpc
from tests.support.sdk import WEATHER
from tests.support.services import MODEL

pytestmark = pytest.mark.e2e

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": CAPITAL}]
WEATHER_QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
TURN = f"<|im_start|>user\n{CAPITAL}<|im_end|>\n<|im_start|>assistant\n"


# --- chat -----------------------------------------------------------------------------------------


def test_a_chat_is_answered(client: openai.OpenAI) -> None:
    """Every field of the SDK's types has a value."""
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
    choice = answer.choices[0]

    assert choice.message.content == PARIS
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert choice.message.tool_calls is None
    assert (answer.object, answer.model) == ("chat.completion", MODEL)
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens > 10
    assert answer._request_id is not None


def test_a_chat_streams(client: openai.OpenAI) -> None:
    """Role, content, finish reason, and usage in the last chunk on request."""
    with client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]

    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == PARIS
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 5
    assert {chunk.usage for chunk in chunks[:-1]} == {None}
    assert len({chunk.id for chunk in chunks}) == 1


async def test_the_stream_helper_accumulates_the_message(
    aclient: openai.AsyncOpenAI,
) -> None:
    """The SDK's helper builds the complete message."""
    async with aclient.chat.completions.stream(
        model=MODEL, messages=QUESTION, temperature=0
    ) as stream:
        answer = await stream.get_final_completion()

    assert answer.choices[0].message.content == PARIS
    assert answer.choices[0].finish_reason == "stop"


def test_the_model_uses_earlier_turns(client: openai.OpenAI) -> None:
    """A conversation of several turns."""
    turns: list[ChatCompletionMessageParam] = [{"role": "user", "content": "My name is Mira."}]
    first = client.chat.completions.create(model=MODEL, messages=turns, temperature=0)
    turns += [
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "What is my name?"},
    ]
    second = client.chat.completions.create(model=MODEL, messages=turns, temperature=0)

    assert "Mira" in (second.choices[0].message.content or "")
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) > 10, "the prefix is reused"


def test_a_trailing_assistant_message_is_continued(client: openai.OpenAI) -> None:
    """The answer does not repeat it."""
    started: list[ChatCompletionMessageParam] = [
        *QUESTION,
        {"role": "assistant", "content": "The capital of France"},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=started, temperature=0)

    assert answer.choices[0].message.content == " is Paris."


def test_thinking_is_a_separate_field(client: openai.OpenAI) -> None:
    """`enable_thinking` returns the reasoning and its token count."""
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is 3 plus 4?"}],
        temperature=0,
        extra_body={"enable_thinking": True},
    )
    message = answer.choices[0].message

    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"]
    assert "<think>" not in (message.content or "")
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert (answer.usage.completion_tokens_details.reasoning_tokens or 0) > 0


def test_stop_strings_end_the_answer(client: openai.OpenAI) -> None:
    """A string or a list. The match is not sent."""
    for stop in (" is Par", ["nowhere", " is Par"]):
        answer = client.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=0, stop=stop
        )
        assert answer.choices[0].message.content == "The capital of France"
        assert answer.choices[0].finish_reason == "stop"


def test_a_token_limit_ends_the_answer_with_length(client: openai.OpenAI) -> None:
    """With both names of the field."""
    fields: list[dict[str, int]] = [{"max_tokens": 3}, {"max_completion_tokens": 3}]
    for limit in fields:
        answer = client.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=0, extra_body=limit
        )
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 3


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stop": "tal of Fr"},
        {"extra_body": {"enable_thinking": True, "thinking_token_budget": 9}},
        {"extra_body": {"enable_thinking": True, "skip_special_tokens": False}},
        {"extra_body": {"enable_thinking": True, "include_reasoning": False}},
        {"messages": WEATHER_QUESTION, "tools": [WEATHER]},
    ],
)
def test_logprobs_cover_the_content(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    """And nothing else that the model wrote, whole and streamed, in OpenAI's format."""
    request: dict[str, Any] = {
        "model": MODEL,
        "messages": QUESTION,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 2,
        **fields,
    }
    whole: Any = client.chat.completions.create(**request).choices[0]
    stream: Any = client.chat.completions.create(**request, stream=True)
    parts = [chunk.choices[0].logprobs for chunk in stream]
    streamed = [entry for part in parts if part for entry in part.content]
    content = (whole.message.content or "").encode()

    assert content or whole.message.tool_calls
    for entries in (whole.logprobs.content, streamed):
        assert bytes(byte for entry in entries for byte in entry.bytes) == content
        assert all(len(entry.top_logprobs) == 2 for entry in entries)
        assert all(entry.logprob == entry.top_logprobs[0].logprob for entry in entries)


# --- tools ----------------------------------------------------------------------------------------


def test_a_tool_is_called_and_its_result_is_used(client: openai.OpenAI) -> None:
    """Question, tool call, result, answer."""
    turns: list[ChatCompletionMessageParam] = [
        {"role": "user", "content": "What is the weather in Paris?"}
    ]
    asked = client.chat.completions.create(
        model=MODEL, messages=turns, tools=[WEATHER], temperature=0
    )
    message = asked.choices[0].message
    assert message.tool_calls is not None
    call = message.tool_calls[0]
    assert call.type == "function"
    turns += [
        message.to_dict(),  # type: ignore[list-item]
        {"role": "tool", "tool_call_id": call.id, "content": '{"weather": "sunny"}'},
    ]
    answered = client.chat.completions.create(
        model=MODEL, messages=turns, tools=[WEATHER], temperature=0
    )

    assert asked.choices[0].finish_reason == "tool_calls"
    assert message.content is None
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Paris"}')
    assert answered.choices[0].finish_reason == "stop"
    assert "sunny" in (answered.choices[0].message.content or "")


async def test_a_tool_call_streams(aclient: openai.AsyncOpenAI) -> None:
    """Id and name first, then the arguments in deltas, without the markup."""
    stream = await aclient.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        tools=[WEATHER],
        tool_choice="auto",
        temperature=0,
        stream=True,
    )
    chunks = [chunk async for chunk in stream]
    pieces = [piece for chunk in chunks for piece in chunk.choices[0].delta.tool_calls or ()]

    assert pieces[0].id
    assert pieces[0].function is not None
    assert pieces[0].function.name == "get_weather"
    arguments = "".join(piece.function.arguments or "" for piece in pieces if piece.function)
    assert arguments == '{"city": "Paris"}'
    assert not any(chunk.choices[0].delta.content for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


# --- completions ----------------------------------------------------------------------------------


def test_a_text_is_continued(client: openai.OpenAI) -> None:
    """The completions endpoint parses control tokens in the prompt."""
    answer = client.completions.create(model=MODEL, prompt=TURN, temperature=0, max_tokens=30)

    assert answer.object == "text_completion"
    assert answer.choices[0].text == PARIS
    assert answer.choices[0].finish_reason == "stop"


def test_several_prompts_are_continued_in_one_request(client: openai.OpenAI) -> None:
    """Texts and token ids. There are n choices per prompt, in order."""
    other = TURN.replace("France", "Italy")
    texts = client.completions.create(
        model=MODEL, prompt=[TURN, other], temperature=0, max_tokens=30, n=2
    )

    assert [choice.index for choice in texts.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in texts.choices[:2]] == [PARIS, PARIS]
    assert all("Rome" in choice.text for choice in texts.choices[2:])


def test_token_ids_are_prompts_too(client: openai.OpenAI) -> None:
    """One list or several. `echo` returns them as text."""
    hello = client.completions.create(
        model=MODEL, prompt=[72, 101], echo=True, max_tokens=0, temperature=0
    )
    completion = client.completions.create(
        model=MODEL, prompt=[[72, 101], [101, 72]], echo=True, max_tokens=0, temperature=0
    )

    assert len(hello.choices[0].text) == 2
    assert [choice.text for choice in completion.choices] == [
        hello.choices[0].text,
        hello.choices[0].text[::-1],
    ]
    assert hello.usage is not None
    assert (hello.usage.prompt_tokens, hello.usage.completion_tokens) == (2, 0)


def test_echo_prepends_the_prompt(client: openai.OpenAI) -> None:
    """With and without streaming."""
    completion = client.completions.create(
        model=MODEL, prompt=TURN, echo=True, temperature=0, max_tokens=30
    )
    with client.completions.create(
        model=MODEL, prompt=TURN, echo=True, temperature=0, max_tokens=30, stream=True
    ) as stream:
        streamed = "".join(chunk.choices[0].text for chunk in stream if chunk.choices)

    assert completion.choices[0].text == TURN + PARIS
    assert streamed == completion.choices[0].text


async def test_control_tokens_are_echoed_from_ids_too(
    aclient: openai.AsyncOpenAI, rpc: Rpc
) -> None:
    """The echo is the same for text and ids."""
    tokens = await rpc.inference.Tokenize(pb.TokenizeRequest(text=TURN, parse_special=True))
    answer = await aclient.completions.create(
        model=MODEL, prompt=list(tokens.token_ids), echo=True, max_tokens=0
    )

    assert answer.choices[0].text == TURN


def test_completion_logprobs_match_the_text(client: openai.OpenAI) -> None:
    """Four parallel lists, in the format of the completions endpoint."""
    answer = client.completions.create(
        model=MODEL, prompt=TURN, temperature=0, max_tokens=6, logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    tokens, text = logprobs.tokens or [], answer.choices[0].text
    offsets = zip(logprobs.text_offset or [], tokens, strict=True)

    assert len(tokens) == 6
    assert "".join(tokens) == text
    assert all(text[offset:].startswith(token) for offset, token in offsets)
    assert len(logprobs.token_logprobs or ()) == len(logprobs.top_logprobs or ()) == 6


async def test_a_completion_streams(aclient: openai.AsyncOpenAI) -> None:
    """With a stop string, and usage at the end."""
    stream = await aclient.completions.create(
        model=MODEL,
        prompt=TURN,
        temperature=0,
        max_tokens=30,
        stop=" Paris",
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]

    text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    assert text == "The capital of France is"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens > 10


# --- models ---------------------------------------------------------------------------------------


def test_models_are_listed_and_retrieved(client: openai.OpenAI) -> None:
    """By the names that requests use, including special characters."""
    names = [model.id for model in client.models.list()]

    assert sorted(names) == [ODD_NAME, MODEL]
    for name in names:
        model = client.models.retrieve(name)
        assert (model.id, model.object) == (name, "model")
        answer = client.chat.completions.create(model=name, messages=QUESTION, temperature=0)
        assert (answer.model, answer.choices[0].message.content) == (name, PARIS)


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt-9", "no/such:model-7b"])
def test_an_unknown_model_is_not_found(client: openai.OpenAI, name: str) -> None:
    """NotFoundError of the SDK, for any characters, when retrieving a model and in requests."""
    with pytest.raises(openai.NotFoundError) as looked_up:
        client.models.retrieve(name)
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model=name, messages=QUESTION)

    for failure in (looked_up.value, error.value):
        assert failure.code == "model_not_found"
        assert f"'{name}'" in failure.message
        assert failure.request_id
