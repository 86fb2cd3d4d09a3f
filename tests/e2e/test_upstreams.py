"""A whole Corral over an engine of others, as users see it with the official `openai` package: over
stand-ins of all kinds."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from inference_svc.engine_client.continuation import continuation
from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.models.sources import BUNDLED_PATH
from inference_svc.output_format import OutputFormat, OutputFormatKind
from tests.support.engine_stand_in import EngineStandIn, Fault, Script, run_engine
from tests.support.sdk import WEATHER
from tests.support.sdk_batches import read_batch, start_batch, wait_for_batch
from tests.support.services import RESTART_RETRIES, Corral, corral_up

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # the SDK deprecates Assistants
]

SAYS = "The cat sat on the mat."
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
LOST_AFTER = 8
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module", params=["llama_server", "vllm", "sglang"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def engine(kind: str) -> Iterator[EngineStandIn]:
    """Only vLLM's takes our grammars."""
    with run_engine(kind, SAYS) as engine:
        engine.state.takes_grammars = kind == "vllm"
        yield engine


@pytest.fixture(scope="module")
def vocabulary() -> Iterator[Vocabulary]:
    vocabulary = Vocabulary.load(BUNDLED_PATH)
    yield vocabulary
    vocabulary.close()


@pytest.fixture(scope="module")
def corral(engine: EngineStandIn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """One that was started while its engine was away."""
    engine.stop()
    flags = ("--engine", f"big={engine.url}", "--tokenizer", "bundled")
    with corral_up(tmp_path_factory.mktemp("upstream"), *flags) as corral:
        engine.start()
        yield corral


@pytest.fixture
def client(corral: Corral) -> Iterator[openai.OpenAI]:
    """Retries, since the engine may just have come back."""
    with openai.OpenAI(
        base_url=corral.api, api_key="unused", max_retries=RESTART_RETRIES
    ) as client:
        yield client


@pytest.fixture(autouse=True)
def script(engine: EngineStandIn, vocabulary: Vocabulary) -> None:
    engine.script, engine.faults = Script(vocabulary, SAYS), []
    engine.state.step_s = 0.0


def ask(client: openai.OpenAI, **options: Any) -> ChatCompletion:
    answer: ChatCompletion = client.chat.completions.create(
        model="big", messages=[{"role": "user", "content": "What did the cat do?"}], **options
    )
    return answer


def lose_engine(client: openai.OpenAI, engine: EngineStandIn) -> None:
    """Cut its next answer, so slowly written that what was written before arrives."""
    ask(client)  # it has been probed
    engine.faults = [Fault("cut", after=LOST_AFTER, times=1)]
    engine.state.step_s = 0.01


def prompt_of(body: Any) -> list[int]:
    """The tokens of a request to an engine; SGLang's name of them is another one."""
    tokens: list[int] = body["input_ids" if "input_ids" in body else "prompt"]
    return tokens


def test_the_message_of_the_start_names_an_engine_that_is_away(
    corral: Corral, engine: EngineStandIn, client: openai.OpenAI
) -> None:
    """Everything else has started, and the engine is used once it is there."""
    started = corral.program.wait_for_line(r"model +big +(.*)", stream="stdout")[1]

    assert "its engine is away, and is tried again" in started
    assert engine.url in started
    assert ask(client).choices[0].message.content == SAYS


def test_a_chat_streams_from_the_engine(client: openai.OpenAI, engine: EngineStandIn) -> None:
    """With exact usage, and the tokens of our template as the prompt."""
    with client.chat.completions.create(
        model="big",
        messages=[{"role": "user", "content": "What did the cat do?"}],
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    usage = chunks[-1].usage

    assert "".join(texts) == SAYS
    assert len(texts) > 2
    assert usage is not None
    assert usage.prompt_tokens == len(prompt_of(engine.generations[-1]))
    assert usage.completion_tokens > 4


def test_a_prompt_that_breaks_an_earlier_one_is_told_with_its_field(
    client: openai.OpenAI, corral: Corral
) -> None:
    """In the turns of its session, as of a local model."""
    rules = [f"Rule {number} of the house is to be kind to animals." for number in range(60)]
    for changed in ("Rule 20 is to be quiet.", "Rule 20 is to talk."):
        rules[20] = changed
        client.chat.completions.create(
            model="big",
            messages=[
                {"role": "system", "content": "\n".join(rules)},
                {"role": "user", "content": "What did the cat do?"},
            ],
            prompt_cache_key="house",
        )
    with httpx.Client(base_url=corral.url, trust_env=False) as http:
        listed = http.get("/admin/sessions").json()["sessions"]
        (session,) = (each for each in listed if each["name"] == "house")
        query = {"session_id": session["session_id"]}
        (whole,) = http.get("/admin/sessions", params=query).json()["sessions"]
    first, second = (turn["usage"] for turn in whole["turns"])

    assert "divergence" not in first
    assert second["divergence"]["field"] == "messages[0].content"
    assert 0 < second["divergence"]["token_index"] < second["prompt_tokens"] // 2


def test_seeds_biases_choices_and_stop_texts_reach_or_end_the_engine(
    client: openai.OpenAI, engine: EngineStandIn
) -> None:
    """A choice is a request of its own, and a stop text ends it here."""
    answer = ask(client, n=2, seed=5, logit_bias={"7": 1.5}, stop=["mat"], temperature=1.0)
    bodies = [each.get("sampling_params", each) for each in engine.generations[-2:]]

    assert [each.message.content for each in answer.choices] == ["The cat sat on the "] * 2
    assert sorted(each.get("seed", each.get("sampling_seed")) for each in bodies) == [5, 6]
    assert [each["logit_bias"] for each in bodies] in ([{"7": 1.5}] * 2, [[[7, 1.5]]] * 2)


def test_a_call_that_was_half_written_goes_on_after_a_loss(
    client: openai.OpenAI, engine: EngineStandIn, vocabulary: Vocabulary
) -> None:
    if engine.state.takes_grammars:
        pytest.skip("its calls are enforced, so that it cannot go on")
    lose_engine(client, engine)
    engine.script = Script(vocabulary, CALL)
    answer = ask(client, tools=[WEATHER])
    first, second = map(prompt_of, engine.generations[-2:])

    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert json.loads(calls[0].function.arguments) == {"city": "Paris"}  # type: ignore[union-attr]
    assert len(first) < len(second) <= len(first) + LOST_AFTER


def respond_in_format(client: openai.OpenAI, schema: Any) -> tuple[str, Response]:
    """The type of the last event of a background response, and the response."""
    response = client.responses.create(
        model="big",
        input="Hi",
        background=True,
        max_output_tokens=60,
        text={"format": {"type": "json_schema", "name": "c", "schema": schema}},
    )
    with client.responses.retrieve(response.id, stream=True) as events:
        last: Any = list(events)[-1]
    return last.type, last.response


def test_a_background_response_with_a_format_goes_on_after_a_loss(
    client: openai.OpenAI, engine: EngineStandIn
) -> None:
    """With the grammar of what is still to be written."""
    lose_engine(client, engine)
    num_before = len(engine.generations)
    ended, response = respond_in_format(client, SCHEMA)
    first, second = map(prompt_of, engine.generations[num_before:])
    form = OutputFormat(OutputFormatKind.JSON_SCHEMA, json.dumps(SCHEMA), "format")

    assert ended in ("response.completed", "response.incomplete")
    assert first == second[: len(first)]
    assert len(first) < len(second) <= len(first) + LOST_AFTER
    assert len(response.output_text) > LOST_AFTER
    assert continuation(form, response.output_text) is not None


def test_a_background_response_whose_rest_is_no_grammar_fails_if_it_had_begun(
    client: openai.OpenAI, engine: EngineStandIn
) -> None:
    """Its turn is not tried again."""
    if not engine.state.takes_grammars:
        pytest.skip("it enforces no 'minLength', and is not asked")
    lose_engine(client, engine)
    num_before = len(engine.generations)
    schema = {**SCHEMA, "properties": {"city": {"type": "string", "minLength": 20}}}
    ended, response = respond_in_format(client, schema)

    assert ended == "response.failed"
    assert "'resume' with" in str(response.error)
    assert len(engine.generations) == num_before + 1


def test_calls_of_tools_are_parsed(
    client: openai.OpenAI, engine: EngineStandIn, vocabulary: Vocabulary
) -> None:
    engine.script = Script(vocabulary, CALL)
    answer = ask(client, tools=[WEATHER])

    calls = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls"
    assert calls is not None
    (call,) = calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}  # type: ignore[union-attr]


def test_an_answer_follows_a_json_schema(client: openai.OpenAI) -> None:
    """The engine enforces it: its own text would be a sentence."""
    answer_format = {"type": "json_schema", "json_schema": {"name": "c", "schema": SCHEMA}}
    answer = ask(client, response_format=answer_format, max_tokens=100)

    assert (answer.choices[0].message.content or "").lstrip().startswith("{")


def test_what_the_engine_cannot_do_is_refused_by_name(client: openai.OpenAI, kind: str) -> None:
    """Before it is asked."""
    ask(client)  # it is connected
    with pytest.raises(openai.APIStatusError, match=kind.replace("_", "-")) as refused:
        client.with_options(max_retries=0).embeddings.create(model="big", input="a")

    assert refused.value.status_code == 501


def test_a_batch_runs_over_the_engine(client: openai.OpenAI, corral: Corral) -> None:
    body = {"model": "big", "messages": [{"role": "user", "content": "Hi"}]}
    lines = [
        {"custom_id": f"l{i}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for i in range(3)
    ]
    batch = start_batch(client, lines)
    wait_for_batch(corral, batch.id)
    ended = read_batch(client, batch.id)

    answers = [line["response"]["body"]["choices"][0] for line in ended.completed.values()]
    assert [each["message"]["content"] for each in answers] == [SAYS] * 3


def test_vllm_sends_several_tokens_at_once_to_those_who_need_the_whole_answer(
    kind: str, client: openai.OpenAI, corral: Corral, engine: EngineStandIn
) -> None:
    """Streams get each when it is written."""
    message: Any = {"role": "user", "content": "What did the cat do?"}
    body = {"model": "big", "messages": [message]}
    line = {"custom_id": "l", "method": "POST", "url": "/v1/chat/completions", "body": body}
    intervals = []
    ask(client)
    intervals.append(engine.generations[-1].get("stream_interval"))
    with client.chat.completions.create(model="big", messages=[message], stream=True) as stream:
        assert len(list(stream)) > 2
    intervals.append(engine.generations[-1].get("stream_interval"))
    wait_for_batch(corral, start_batch(client, [line]).id)
    intervals.append(engine.generations[-1].get("stream_interval"))

    assert intervals == ([8, None, 8] if kind == "vllm" else [None] * 3)


def test_a_run_of_an_assistant_answers_over_the_engine(client: openai.OpenAI) -> None:
    assistant = client.beta.assistants.create(model="big", instructions="Be brief.")
    thread = client.beta.threads.create(messages=[{"role": "user", "content": "Hi"}])
    run = client.beta.threads.runs.create_and_poll(
        thread_id=thread.id, assistant_id=assistant.id, poll_interval_ms=100
    )
    newest = client.beta.threads.messages.list(thread.id).data[0]

    assert run.status == "completed"
    assert newest.content[0].text.value == SAYS  # type: ignore[union-attr]


def test_a_response_in_the_background_outlives_the_engine(
    client: openai.OpenAI, engine: EngineStandIn
) -> None:
    """It begins while the engine is away, and is answered when that is back. Calls that do not wait
    are told when to try again."""
    engine.stop()
    with pytest.raises(openai.APIStatusError) as refused:
        ask(client.with_options(max_retries=0))
    response = client.responses.create(model="big", input="Hi", background=True)
    engine.start()
    with client.responses.retrieve(response.id, stream=True) as events:
        last = list(events)[-1]

    assert refused.value.status_code == 503
    assert float(refused.value.response.headers["retry-after"]) > 0
    assert last.type == "response.completed"
    assert last.response.output_text == SAYS
