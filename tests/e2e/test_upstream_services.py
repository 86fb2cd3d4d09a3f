"""Limits, usage, vector stores and traces over an engine of others: those of local models."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Final

import openai
import pytest

from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.models.sources import BUNDLED_PATH
from svc_kit.rpc.client import open_channel
from tests.support.engine_stand_in import EngineStandIn, Script, run_engine
from tests.support.operators import Operator
from tests.support.otlp import Collector, run_collector
from tests.support.services import Corral, corral_up

pytestmark = pytest.mark.e2e

SAYS: Final = "The cat sat on the mat."
TEXT: Final = "Knead the dough for ten minutes, then bake it in a hot oven."
SEARCH: Final = {"name": "file_search", "arguments": {"queries": ["bread"]}}
MESSAGES: Any = [{"role": "user", "content": "What did the cat do?"}]
ALLOWED: Final = 3
TRACE: Final = f"{7:032x}"


@dataclass(frozen=True)
class Served:
    """An engine, the Corral in front of it, and what receives its spans."""

    engine: EngineStandIn
    corral: Corral
    collector: Collector
    token: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("services")
    flags = ("--tokenizer", "bundled", "--embedding-model", "local=bundled", "--require-keys")
    quick = {"key_cache_s": 0}
    with (
        run_collector() as collector,
        run_engine("vllm", SAYS) as engine,
        corral_up(
            folder,
            *("--engine", f"big={engine.url}", *flags, "--otlp-endpoint", collector.url),
            inference={**quick, "usage_interval_s": 0.1},
            gateway=quick,
        ) as corral,
    ):
        token = (folder / "data" / "service-token").read_text().strip()
        yield Served(engine, corral, collector, token)


@pytest.fixture
async def operator(served: Served) -> AsyncIterator[Operator]:
    async with open_channel(served.corral.control, token=served.token) as channel:
        yield Operator(channel)


@pytest.fixture
async def secret(operator: Operator, request: pytest.FixtureRequest) -> str:
    """A key of a project of the test's own."""
    project = request.node.name.replace("_", "-")[-30:].strip("-")
    await operator.create_project(project)
    return (await operator.create_key(project)).secret


async def chat(client: openai.AsyncOpenAI, **options: Any) -> Any:
    return await client.chat.completions.create(
        model="big", messages=MESSAGES, max_tokens=20, **options
    )


async def answers_until_refused(client: openai.AsyncOpenAI) -> tuple[list[Any], str]:
    """Send chats until one is refused; return the answers and why it was."""
    answers = []
    while True:
        try:
            answers.append(await chat(client))
        except openai.RateLimitError as error:
            return answers, error.message


async def test_limits_count_what_reaches_the_engine(served: Served, operator: Operator) -> None:
    """A request beyond the limit is refused before the engine hears of it, and the usage is that
    which callers were told."""
    await operator.create_project("limited")
    created = await operator.create_key("limited")
    await operator.create_limit("calls", "REQUESTS", ALLOWED, key=created.key.id)
    sent = len(served.engine.generations)
    async with served.corral.sdk(created.secret) as client, asyncio.timeout(50):
        answers, reason = await answers_until_refused(client)
        while True:
            sums = (await operator.list_usage(key=created.key.id)).sums
            if sum(each.counts.requests for each in sums) >= len(answers):
                break
    (counts,) = (each.counts for each in sums)

    assert "'calls'" in reason
    assert len(served.engine.generations) - sent == len(answers) >= ALLOWED
    assert {answer.choices[0].message.content for answer in answers} == {SAYS}
    assert counts.completion_tokens == sum(each.usage.completion_tokens for each in answers)
    assert counts.prompt_tokens == sum(each.usage.prompt_tokens for each in answers)


async def test_a_response_finds_passages_of_a_vector_store(served: Served, secret: str) -> None:
    """The engine calls the search, whose passages are in its next prompt."""
    vocabulary = Vocabulary.load(BUNDLED_PATH)
    engine = served.engine
    async with served.corral.sdk(secret) as client, asyncio.timeout(50):
        file = await client.files.create(file=("bread.txt", TEXT.encode()), purpose="user_data")
        store = await client.vector_stores.create()
        await client.vector_stores.files.create_and_poll(file.id, vector_store_id=store.id)
        engine.script = Script(vocabulary, f"<tool_call>\n{json.dumps(SEARCH)}\n</tool_call>")
        try:
            answer = await client.responses.create(
                model="big",
                input="How do I make bread?",
                tools=[{"type": "file_search", "vector_store_ids": [store.id]}],
                max_tool_calls=1,
                include=["file_search_call.results"],
            )
        finally:
            engine.script = Script(vocabulary, SAYS)
    search = answer.output[0]
    prompt = vocabulary.detokenize(engine.generations[-1]["prompt"])
    vocabulary.close()

    assert search.type == "file_search_call"
    assert search.results is not None
    assert [each.text for each in search.results] == [TEXT]
    assert TEXT in prompt


async def test_a_chat_over_an_engine_is_traced_as_one_of_a_local_model(
    served: Served, secret: str
) -> None:
    async with served.corral.sdk(secret) as client:
        answer = await chat(client, extra_headers={"traceparent": f"00-{TRACE}-{'1' * 16}-01"})
    root = await asyncio.to_thread(
        served.collector.wait_for, TRACE, "corral.inference.v1.InferenceService/Chat"
    )
    span = served.collector.wait_for(TRACE, "chat big")

    assert root.service == span.service == "corral-inference"
    assert served.collector.tree(span).keys() == {"prepare", "queue", "prefill", "decode"}
    assert span.attributes["gen_ai.request.model"] == "big"
    assert span.attributes["gen_ai.usage.input_tokens"] == answer.usage.prompt_tokens
    assert span.attributes["gen_ai.usage.output_tokens"] == answer.usage.completion_tokens
