"""What the probes of the URLs of an upstream find, and what follows for the model."""

import asyncio
import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from inference_svc.engine.events import Finished, Started
from inference_svc.engine.request import Submit
from inference_svc.engine_client.process import StartFailed
from inference_svc.upstream.endpoint import Endpoint, EndpointState
from inference_svc.upstream.endpoints import Endpoints
from inference_svc.upstream.target import UpstreamTarget
from inference_svc.upstream.token_mode import TokenMode
from tests.support.byte_engine import (
    END,
    Attempt,
    ByteEngine,
    ByteVocabulary,
    Client,
    byte_request,
    connected,
    run_until_refused,
)
from tests.support.engine_features import first_probe

REPLY = (*b"one", END)


class BrokenVocabulary(ByteVocabulary):
    """A tokenizer with a defect."""

    def tokenize(self, *args: Any, **options: Any) -> list[int]:
        """Fail."""
        raise ZeroDivisionError


class MarkedVocabulary(ByteVocabulary):
    """A tokenizer that has many control tokens and an added one; its engine lacks `lacking`."""

    control_texts = ("</s>", *(f"<SPECIAL_{each}>" for each in range(20)), "[TOOL_CALLS]")
    added_tokens: Mapping[str, int] = {"<think>": 1}

    def __init__(self, lacking: str) -> None:
        self._lacking = lacking

    def tokenize(self, text: str, **options: Any) -> list[int]:
        """The bytes of a text, and a token for what the engine lacks."""
        tokens = list[int]()
        for number, part in enumerate(text.split(self._lacking)):
            tokens += [1] * (number > 0) + super().tokenize(part, **options)
        return tokens


async def probe(engine: ByteEngine, vocabulary: ByteVocabulary, **options: Any) -> Endpoints:
    """The URLs after the first probe."""
    await engine.start()
    endpoints = await first_probe(UpstreamTarget("bytes", [engine.url], **options), vocabulary)
    await engine.stop()
    return endpoints


ODD_MODELS: dict[str, Any] = {
    "a number of models": 3,
    "numbers as models": [3],
    "no models": [],
    "a list of facts": [{"id": "bytes", "meta": [1]}],
}


@pytest.mark.parametrize("models", ODD_MODELS.values(), ids=ODD_MODELS)
async def test_an_odd_list_of_models_is_told_and_tried_again_later(models: Any) -> None:
    engine = ByteEngine(REPLY)
    engine.routes["/v1/models"] = lambda: (200, {"data": models})
    endpoints = await probe(engine, ByteVocabulary())
    (endpoint,) = endpoints.status
    assert endpoint.state is EndpointState.DOWN
    assert "model" in endpoint.problem


async def test_a_defect_in_a_probe_is_told_and_tried_again_after_a_pause() -> None:
    engine = ByteEngine(REPLY)
    endpoints = await probe(engine, BrokenVocabulary(), kind="llama_server")
    (endpoint,) = endpoints.status
    assert (endpoint.state, "ZeroDivisionError" in endpoint.problem) == (EndpointState.DOWN, True)


MARKS = ["</s>", "<SPECIAL_0>", "<SPECIAL_19>", "[TOOL_CALLS]", "<think>"]


@pytest.mark.parametrize("mark", MARKS)
async def test_an_engine_without_a_control_or_added_token_is_refused(mark: str) -> None:
    endpoints = await probe(ByteEngine(REPLY), MarkedVocabulary(mark))
    (endpoint,) = endpoints.status
    assert endpoint.state is EndpointState.REFUSED
    assert f"token 0 of {mark!r} is {ord(mark[0])} there, and 1 in" in endpoint.problem


KINDS = ["llama_server", "vllm", "sglang"]
_SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
NO_IDS: dict[str, tuple[str, Any]] = {
    "llama-server": ("llama_server", {"content": "a", "stop": False}),
    "vllm": ("vllm", {"choices": [{"text": "a", "finish_reason": None}]}),
    "vllm with all in one event": (
        "vllm",
        {"choices": [{"text": "ab", "finish_reason": "length"}]},
    ),
    "sglang": ("sglang", {"text": "a", "meta_info": {"completion_tokens": 1}}),
}


@pytest.mark.parametrize(("kind", "event"), NO_IDS.values(), ids=NO_IDS)
async def test_an_engine_that_writes_no_token_ids_is_refused(kind: str, event: Any) -> None:
    """As vLLM before `return_token_ids`, or behind a proxy that drops it."""
    answer = _SSE + f"data: {json.dumps(event)}\n\n".encode()
    endpoints = await probe(ByteEngine(REPLY, kind, probes=[Attempt(raw=answer)]), ByteVocabulary())
    (endpoint,) = endpoints.status
    assert endpoint.state is EndpointState.REFUSED
    assert "it answered without token ids. Text mode needs no ids" in endpoint.problem


@pytest.mark.parametrize("kind", KINDS)
async def test_an_engine_that_refuses_what_every_request_has_is_refused(kind: str) -> None:
    """As SGLang before `sampling_seed`."""
    refusal = b'HTTP/1.1 400 X\r\nContent-Length: 21\r\n\r\n{"error": "no seeds"}'
    engine = ByteEngine(REPLY, kind, probes=[Attempt(raw=refusal)])
    (endpoint,) = (await probe(engine, ByteVocabulary())).status
    assert endpoint.state is EndpointState.REFUSED
    assert "no seeds" in endpoint.problem


@pytest.mark.parametrize(
    ("kind", "ignored", "expected"),
    [
        ("vllm", "", True),
        ("vllm", "cache_salt", False),
        ("sglang", "", True),
        ("sglang", "extra_key", False),
        ("llama_server", "", False),
    ],
)
async def test_an_engine_that_knows_no_salt_is_named(
    kind: str, ignored: str, expected: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It would share prefixes among all projects."""
    engine = ByteEngine(REPLY, kind, ignored=frozenset([ignored]))
    endpoints = await probe(engine, ByteVocabulary())
    assert endpoints.probed is not None
    assert endpoints.probed.features.separates_projects == expected
    warned = [each for each in caplog.messages if "shares computed prefixes" in each]
    assert len(warned) == bool(ignored)
    assert all(f"does not know {ignored}" in each for each in warned)


PAGE = Path(__file__).parents[4] / "docs" / "operate" / "engines.md"
ROWS = {
    "llama_server": "llama-server",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "openai": "in text mode",
}


@pytest.mark.parametrize("kind", ROWS)
async def test_the_page_names_the_routes_that_are_asked(kind: str) -> None:
    """A probe asks all but those of adapters, and those of embeddings in text mode."""
    engine = ByteEngine(REPLY, kind)
    async with connected(engine, kind=kind, default_path="/v1" * (kind == "openai")):
        pass
    (cell,) = re.findall(rf"^\| {ROWS[kind]} \| (`/.+?)[;|]", PAGE.read_text(), re.MULTILINE)
    asked = {path.removeprefix("/v1" * (kind == "openai")) for path in engine.requests}
    assert asked == {*re.findall("`(.+?)`", cell)}


CUT = Attempt(lost_after=1)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_grammar_is_tried_again_if_the_connection_was_cut(kind: str) -> None:
    engine = ByteEngine(REPLY, kind, probes=[Attempt(), CUT])
    endpoints = await probe(engine, ByteVocabulary())
    assert endpoints.probed is not None
    assert endpoints.probed.features.takes_grammars
    assert engine.probes == []


async def test_an_engine_that_cuts_only_grammars_does_not_take_them() -> None:
    engine = ByteEngine(REPLY, "vllm", probes=[Attempt(), CUT, Attempt(), CUT])
    endpoints = await probe(engine, ByteVocabulary())
    assert endpoints.probed is not None
    features = endpoints.probed.features
    assert (features.takes_grammars, len(features.constraints)) == (False, 5)


async def test_an_engine_that_is_lost_in_a_probe_is_probed_again() -> None:
    engine = ByteEngine(REPLY, "vllm", probes=[Attempt(), CUT, CUT])
    endpoints = await probe(engine, ByteVocabulary())
    (endpoint,) = endpoints.status
    assert (endpoint.state, endpoints.probed) == (EndpointState.DOWN, None)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_proxy_that_refuses_the_routes_of_other_kinds_hides_no_engine(status: int) -> None:
    engine = ByteEngine(REPLY, "vllm")
    engine.routes["/props"] = lambda: (status, {})
    endpoints = await probe(engine, ByteVocabulary())
    (endpoint,) = endpoints.status
    assert (endpoint.state, endpoint.problem) == (EndpointState.UP, "")


async def test_a_key_that_is_refused_by_all_routes_is_told() -> None:
    engine = ByteEngine(REPLY, "vllm")
    for route in ("/props", "/version", "/server_info"):
        engine.routes[route] = lambda: (401, {"error": "no key"})
    (endpoint,) = (await probe(engine, ByteVocabulary())).status
    problem = 'it answered with status 401: \'{"error": "no key"}\''
    assert (endpoint.state, endpoint.problem) == (EndpointState.REFUSED, problem)


async def test_each_reason_why_no_kind_can_be_used_is_told() -> None:
    engine = ByteEngine(REPLY, "vllm")
    engine.routes["/props?model=big"] = lambda: (403, {})
    (endpoint,) = (await probe(engine, ByteVocabulary(), model="big")).status
    assert endpoint.state is EndpointState.REFUSED
    assert "llama_server (it answered with status 403" in endpoint.problem
    assert "vllm (it serves no model 'big'" in endpoint.problem


KEYS = {"a byte order mark": b"\xef\xbb\xbfkey", "a line break": b"one\r\nX-Other: two"}


@pytest.mark.parametrize("content", KEYS.values(), ids=KEYS)
async def test_a_key_file_with_other_characters_is_refused(tmp_path: Path, content: bytes) -> None:
    key = tmp_path / "key"
    key.write_bytes(content)
    engine = ByteEngine(REPLY)
    endpoints = await probe(engine, ByteVocabulary(), key_file=key)
    (endpoint,) = endpoints.status
    assert endpoint.state is EndpointState.REFUSED
    assert "key file" in endpoint.problem
    assert engine.heads == []


BAD: dict[str, tuple[int, Any]] = {
    "that refuses the key": (401, {}),
    "with other models": (200, {"data": [{"id": "x"}]}),
}


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD)
async def test_a_model_starts_though_one_of_its_urls_cannot_be_used(answer: Any) -> None:
    bad, good = ByteEngine(REPLY, "vllm"), ByteEngine(REPLY, "vllm")
    bad.routes["/v1/models"] = partial(tuple, answer)
    await bad.start()
    await good.start()
    target = UpstreamTarget("bytes", [bad.url, good.url], kind="vllm", model="bytes")
    client = Client(target)
    await client.ready()
    states = [each.state for each in client.connection.status.endpoints]
    await client.connection.close()
    await bad.stop()
    await good.stop()
    assert states == [EndpointState.REFUSED, EndpointState.UP]
    assert client.exits == []


async def test_a_model_fails_with_the_problems_of_all_its_urls() -> None:
    engines = [ByteEngine(REPLY, "vllm"), ByteEngine(REPLY, "vllm")]
    answers: list[tuple[int, Any]] = [(401, {}), (403, {})]
    for engine, answer in zip(engines, answers, strict=True):
        engine.routes["/version"] = partial(tuple, answer)
        await engine.start()
    client = Client(UpstreamTarget("bytes", [each.url for each in engines], kind="vllm"))
    await client.wait_for(lambda: bool(client.exits))
    await client.connection.close()
    for engine in engines:
        await engine.stop()
    (failed,) = client.messages
    assert isinstance(failed, StartFailed)
    assert all(each.url in failed.problem for each in engines)
    assert "status 401" in failed.problem
    assert "status 403" in failed.problem


def with_context(tokens: int) -> tuple[int, Any]:
    return 200, {"data": [{"id": "bytes", "max_model_len": tokens, "root": "r"}]}


async def test_what_one_url_lacks_is_refused_at_all_of_them() -> None:
    """One takes no grammars, the other has a shorter context and more slots."""
    engines = [ByteEngine(REPLY, slots=2), ByteEngine(REPLY, slots=6, ignores_constraints=True)]
    props = {"total_slots": 6, "default_generation_settings": {"n_ctx": 128}, "build_info": "b2"}
    engines[1].routes["/props"] = lambda: (200, props)
    async with connected(*engines) as client:
        model = (await client.ready()).model
    assert model.features is not None
    assert model.features.engine == "llama-server b1 and llama-server b2"
    assert (model.features.takes_grammars, model.features.constraints) == (False, frozenset())
    assert (model.slot_tokens, model.slots) == (128, 8)


async def test_each_url_gets_as_many_requests_as_it_has_slots() -> None:
    engines = [ByteEngine(REPLY, slots=slots) for slots in (1, 3)]
    hold = asyncio.Event()
    for engine in engines:
        engine.attempts = [Attempt(hold=hold, held_after=1) for _ in range(4)]
    async with connected(*engines) as client:
        for number in range(5):
            client.send(Submit(byte_request(number)))
        await client.wait_for(lambda: sum(isinstance(each, Started) for each in client.events) == 4)
        assert [len(engine.bodies) for engine in engines] == [1, 3]


async def test_an_engine_that_has_less_after_a_restart_gets_no_request() -> None:
    engine, other = ByteEngine(REPLY, "vllm"), ByteEngine(REPLY, "vllm")
    async with connected(engine, other) as client:
        await engine.stop()
        engine.routes["/version"] = lambda: (200, {"version": "0.34.0"})
        engine.routes["/v1/models"] = partial(with_context, 64)
        await engine.start(int(engine.url.rpartition(":")[2]))
        status = await run_until_refused(client)
    assert "a context of 512 tokens (64)" in status.problem
    assert engine.bodies == []


async def test_a_new_version_of_an_engine_is_probed_before_it_gets_a_request() -> None:
    engine, other = ByteEngine(REPLY, "vllm"), ByteEngine(REPLY, "vllm")
    async with connected(engine, other) as client:
        await engine.stop()
        engine.routes["/version"] = lambda: (200, {"version": "0.34.0"})
        engine.ignores_constraints = True
        await engine.start(int(engine.url.rpartition(":")[2]))
        status = await run_until_refused(client)
    assert "takes_grammars" in status.problem
    assert engine.bodies == []


@pytest.mark.parametrize("kind", KINDS)
async def test_an_engine_with_other_tokens_after_a_restart_gets_no_request(kind: str) -> None:
    """Its name, version and limits are as before."""
    engine, other = ByteEngine(REPLY, kind), ByteEngine(REPLY, kind)
    async with connected(engine, other) as client:
        await engine.stop()
        for route in ("/tokenize", "/v1/tokenize"):
            engine.routes[route] = lambda: (200, {"tokens": [72, 101, 108, 99]})
        await engine.start(int(engine.url.rpartition(":")[2]))
        status = await run_until_refused(client)
    assert "token 3 of 'Hello, world! How are you today?' is 99 there" in status.problem
    assert engine.bodies == []


async def test_an_engine_that_tokenizes_no_longer_gets_no_request() -> None:
    engine, other = ByteEngine(REPLY), ByteEngine(REPLY)
    async with connected(engine, other) as client:
        await engine.stop()
        engine.routes["/tokenize"] = lambda: (404, {})
        await engine.start(int(engine.url.rpartition(":")[2]))
        assert isinstance((await client.run(byte_request()))[-1], Finished)
        assert client.connection.status.endpoints[0].state is EndpointState.DOWN
    assert engine.bodies == []


SGLANG = {"served_model_name": "bytes", "version": "0.5.23"}
BASE = {"id": "bytes", "root": "/m"}
TUNED = {"id": "tuned", "root": "/loras/tuned", "parent": "bytes"}
TOLD: dict[str, tuple[str, str, Any, str]] = {
    "vllm": ("/v1/models", "", {"data": [BASE]}, "/m"),
    "vllm with an adapter as the model": (
        "/v1/models",
        "tuned",
        {"data": [BASE, TUNED]},
        "/m",
    ),
    "llama-server": (
        "/props",
        "",
        {"model_path": "/m.gguf", "default_generation_settings": {}},
        "/m.gguf",
    ),
    "sglang": ("/server_info", "", {**SGLANG, "model_path": "o/r"}, "o/r"),
    "sglang with a revision": (
        "/server_info",
        "",
        {**SGLANG, "model_path": "o/r", "tokenizer_path": "o/r", "revision": "v1"},
        "o/r@v1",
    ),
    "sglang with a folder": (
        "/server_info",
        "",
        {**SGLANG, "model_path": "/m", "tokenizer_path": "/m", "revision": "v1"},
        "/m",
    ),
    "sglang with another tokenizer": (
        "/server_info",
        "",
        {**SGLANG, "model_path": "o/r", "tokenizer_path": "o/t", "revision": "v1"},
        "o/t",
    ),
}


@pytest.mark.parametrize(("path", "model", "answer", "source"), TOLD.values(), ids=TOLD)
async def test_each_kind_tells_where_its_tokenizer_is(
    path: str, model: str, answer: Any, source: str
) -> None:
    kinds = {"/v1/models": "vllm", "/props": "llama_server", "/server_info": "sglang"}
    engine, told = ByteEngine(REPLY, kinds[path]), list[str]()
    engine.routes[path] = lambda: (200, answer)
    await engine.start()

    async def open_vocabulary(source: str) -> ByteVocabulary:
        told.append(source)
        return ByteVocabulary()

    async def verify(_: Endpoint) -> None:
        """No stream is asked for."""

    target = UpstreamTarget("bytes", [engine.url], model=model)
    endpoint = Endpoint(target, engine.url, verify)
    mode = TokenMode(target, open_vocabulary)
    for _ in range(2):
        await mode.examine(endpoint)
    endpoint.close()
    await engine.stop()

    assert told == [source]
