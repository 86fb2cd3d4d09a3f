"""SMG, unmodified, in front of two inference services of Corral, as users of it see them, and in
text mode behind another Corral."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest
from corral.inference.v1.engine_service_pb2 import WatchLoadRequest
from google.protobuf.duration_pb2 import Duration
from smg_grpc_proto.generated import vllm_engine_pb2

from inference_svc.models.sources import BUNDLED_PATH
from tests.support.rpc import CAPITAL, PARIS, connect
from tests.support.services import MODEL, Corral, Inference, corral_up, run_inference
from tests.support.smg import run_smg, vllm_stub
from tools.demo_model.export_hf import export_tokenizer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

MESSAGES: Any = [{"role": "user", "content": CAPITAL}]
TRIES = 50
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Routed:
    """Inference services, and the SDK at the router in front of them."""

    engines: list[Inference]
    url: str
    client: openai.OpenAI

    def num_active(self) -> list[int]:
        return [int(describe(each).active_requests) for each in self.engines]


@contextmanager
def route(folder: Path) -> Iterator[Routed]:
    export_tokenizer(BUNDLED_PATH, folder / "tokenizer")
    settings = {
        "engine.context_tokens": 2048,
        "vllm_engine.enabled": True,
        "vllm_engine.tokenizer": str(folder / "tokenizer"),
    }
    with ExitStack() as stack:
        engines = []
        for name in ("first", "second", "smg"):
            (folder / name).mkdir()
        for name in ("first", "second"):
            engines.append(stack.enter_context(run_inference(folder / name, settings)))
        url = stack.enter_context(run_smg([each.target for each in engines], folder / "smg"))
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused")
        yield Routed(engines, url, stack.enter_context(client))


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routed]:
    with route(tmp_path_factory.mktemp("routed")) as running:
        yield running


@pytest.fixture
def client(routed: Routed) -> openai.OpenAI:
    return routed.client


def describe(engine: Inference) -> Any:
    with grpc.insecure_channel(engine.target) as channel:
        return vllm_stub(channel).GetServerInfo(vllm_engine_pb2.GetServerInfoRequest())


def ask(client: openai.OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(
        model=MODEL, messages=MESSAGES, **{"temperature": 0, "max_tokens": 30, **options}
    )


def test_a_chat_has_the_answer_and_the_usage_of_the_engine(client: openai.OpenAI) -> None:
    answer = ask(client)

    assert answer.choices[0].message.content == PARIS
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (16, 10)


def test_a_stream_has_the_same_text(client: openai.OpenAI) -> None:
    stream = ask(client, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)

    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == PARIS
    assert chunks[-1].usage.completion_tokens == 10


def test_options_of_requests_reach_the_engine(client: openai.OpenAI) -> None:
    """Choices, log probabilities, stop texts, limits and formats."""
    several = ask(client, n=2, logprobs=True, top_logprobs=2, max_tokens=3)
    stopped = ask(client, stop=["Paris"])
    form: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    formed = ask(client, response_format=form)

    assert [each.finish_reason for each in several.choices] == ["length", "length"]
    assert [len(each.logprobs.content) for each in several.choices] == [3, 3]
    assert all(len(e.top_logprobs) == 2 for c in several.choices for e in c.logprobs.content)
    assert stopped.choices[0].message.content == PARIS.partition("Paris")[0]
    assert formed.choices[0].message.content.replace(" ", "") == '{"city":"Paris"}'


def test_an_embedding_comes_through(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model=MODEL, input="hello", encoding_format="float")

    assert len(answer.data[0].embedding) == 256


async def test_a_client_that_leaves_frees_its_slot(routed: Routed) -> None:
    stream = ask(routed.client, stream=True, max_tokens=2000, extra_body={"ignore_eos": True})
    next(iter(stream))
    num_active = routed.num_active()
    stream.close()

    assert sorted(num_active) == [0, 1]
    async with connect(routed.engines[num_active.index(1)].target) as rpc:
        watch = rpc.engine.WatchLoad(WatchLoadRequest(interval=Duration(nanos=100_000_000)))
        async for answer in watch:
            if not answer.load.num_running:
                break
    assert routed.num_active() == [0, 0]


def test_both_engines_are_used_and_one_is_enough(tmp_path: Path) -> None:
    with route(tmp_path) as routed:
        for _ in range(TRIES):
            ask(routed.client, max_tokens=1)
            if all(describe(each).last_receive_timestamp for each in routed.engines):
                break
        else:
            pytest.fail("the router has sent nothing to one of the engines")
        routed.engines[1].program.interrupt()
        routed.engines[1].program.wait()

        answers = [ask(routed.client).choices[0].message.content for _ in range(4)]

    assert answers == [PARIS] * 4


@pytest.fixture(scope="module")
def in_front(routed: Routed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    with corral_up(tmp_path_factory.mktemp("front"), "--engine", f"{MODEL}={routed.url}") as corral:
        yield corral


@pytest.fixture
def front(in_front: Corral) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=in_front.api, api_key="unused", max_retries=60) as connected:
        yield connected


def test_a_chat_through_a_router_is_that_of_the_router(
    client: openai.OpenAI, front: openai.OpenAI
) -> None:
    """Text, reason and usage, whole and streamed."""
    routed, answer = ask(client), ask(front)
    stream = ask(front, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)

    assert answer.choices[0].message.content == routed.choices[0].message.content == text == PARIS
    assert answer.choices[0].finish_reason == routed.choices[0].finish_reason
    assert answer.usage.completion_tokens == routed.usage.completion_tokens
    assert answer.usage.prompt_tokens == chunks[-1].usage.prompt_tokens


def test_what_a_router_lacks_works_in_front_of_it(front: openai.OpenAI) -> None:
    """Stored responses, each of which goes on from the one before, and one in the background."""
    first = front.responses.create(model=MODEL, input=CAPITAL, temperature=0)
    second = front.responses.create(
        model=MODEL, input=CAPITAL, temperature=0, previous_response_id=first.id
    )
    waiting = front.responses.create(model=MODEL, input=CAPITAL, temperature=0, background=True)
    with front.responses.stream(response_id=waiting.id) as events:
        last = events.get_final_response()

    assert first.output_text == last.output_text == PARIS
    assert second.previous_response_id == first.id
    assert second.status == "completed"
