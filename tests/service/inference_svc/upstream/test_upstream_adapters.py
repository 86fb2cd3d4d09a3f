"""Adapters that engines have loaded, which requests name (`upstreams.NAME.adapters`)."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from inference_svc.engine.events import AdaptersListed, Event, Failed, Finished
from inference_svc.engine.request import AppliedAdapter, adapter_stack
from inference_svc.upstream.endpoint import EndpointState
from inference_svc.upstream.target import UpstreamTarget
from svc_kit.errors import FeatureUnsupported
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

KINDS = ["llama_server", "vllm", "sglang"]
REPLY = (*b"one", END)


def load(engine: ByteEngine, *names: str) -> None:
    """Let the engine have these adapters, and list them as its kind does."""
    base = {"id": engine.model, "max_model_len": 512, "root": "r", "parent": None, "meta": {}}
    added = [{"id": name, "root": f"/loras/{name}", "parent": engine.model} for name in names]
    files = [{"id": each, "path": f"/loras/{name}.gguf"} for each, name in enumerate(names)]
    if engine.kind == "llama_server":
        engine.routes["/lora-adapters"] = lambda: (200, files)
    else:
        engine.routes["/v1/models"] = lambda: (200, {"data": [base, *added]})


def loaded(kind: str, *names: str) -> ByteEngine:
    engine = ByteEngine(REPLY, kind)
    load(engine, *names)
    return engine


def applied(**scales: float) -> Any:
    return adapter_stack(AppliedAdapter(name, scale) for name, scale in scales.items())


def listed(client: Client) -> Sequence[frozenset[str]]:
    return [each.names for each in client.events if isinstance(each, AdaptersListed)]


def error_of(events: list[Event]) -> str:
    (failed,) = (each for each in events if isinstance(each, Failed))
    assert isinstance(failed.error, FeatureUnsupported)
    return failed.error.message


ASKED = {
    "llama_server": ([{"id": 1, "scale": 1.0}], [{"id": 1, "scale": 0.0}]),
    "vllm": ("sql", "bytes"),
    "sglang": ("sql", None),
}
"""What names the adapter, and the model without one, in the bodies of requests."""
FIELDS = {"llama_server": "lora", "vllm": "model", "sglang": "lora_path"}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_names_its_adapter_as_the_engine_does(kind: str) -> None:
    """A request without one gets none, though llama-server would apply them to all."""
    engine = loaded(kind, "other", "sql")
    async with connected(engine, adapters=("sql",)) as client:
        ends = [
            (await client.run(byte_request(number, adapters=adapters)))[-1]
            for number, adapters in enumerate([applied(sql=1.0), ()])
        ]
        names = listed(client)

    assert [type(each) for each in ends] == [Finished] * 2
    assert tuple(body.get(FIELDS[kind]) for body in engine.bodies) == ASKED[kind]
    assert names == [frozenset({"sql"})]


async def test_an_engine_without_the_setting_applies_its_adapters_itself() -> None:
    engine = loaded("llama_server", "sql")
    async with connected(engine) as client:
        await client.run(byte_request())

    assert "lora" not in engine.bodies[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("scales", "problem"),
    [({"sql": 0.5}, "a 'scale' of 'adapters' other than 1"), ({"a": 1, "sql": 1}, "several")],
)
async def test_only_llama_server_mixes_adapters(
    kind: str, scales: dict[str, float], problem: str
) -> None:
    engine = loaded(kind, "a", "sql")
    async with connected(engine, adapters=("a", "sql")) as client:
        events = await client.run(byte_request(adapters=applied(**scales)))

    if kind == "llama_server":
        expected = [{"id": 0, "scale": scales.get("a", 0)}, {"id": 1, "scale": scales["sql"]}]
        assert engine.bodies[0]["lora"] == expected
    else:
        assert problem in error_of(events)
        assert engine.bodies == []


@pytest.mark.parametrize("kind", KINDS)
async def test_an_adapter_that_is_loaded_later_is_seen_without_a_new_connection(kind: str) -> None:
    engine = loaded(kind, "a")
    async with connected(engine, adapters=("a", "sql")) as client:
        before = listed(client)
        load(engine, "a", "sql")
        await client.wait_for(lambda: len(listed(client)) > 1)
        await client.run(byte_request(adapters=applied(sql=1.0)))

    assert before == [frozenset({"a"})]
    assert listed(client)[-1] == frozenset({"a", "sql"})
    both = [{"id": 0, "scale": 0.0}, {"id": 1, "scale": 1.0}]
    assert engine.bodies[0][FIELDS[kind]] in ("sql", both)
    assert client.exits == []


async def test_a_url_that_is_away_does_not_hide_what_the_others_have_loaded() -> None:
    engine, away = loaded("vllm"), loaded("vllm")
    async with connected(away, engine, adapters=("sql",)) as client:
        await away.stop()
        await client.run(byte_request())
        load(engine, "sql")
        await client.wait_for(lambda: len(listed(client)) > 1)
        states = [each.state for each in client.connection.status.endpoints]

    assert (states, listed(client)[-1]) == (
        [EndpointState.DOWN, EndpointState.UP],
        frozenset({"sql"}),
    )


async def test_numbers_that_have_changed_are_asked_before_a_request_is_sent() -> None:
    """llama-server was started anew with its adapters in another order."""
    engine = loaded("llama_server", "a", "sql")
    async with connected(engine, adapters=("a", "sql")) as client:
        await engine.stop()
        load(engine, "sql", "a")
        await engine.start(int(engine.url.rpartition(":")[2]))
        events = await client.run(byte_request(adapters=applied(sql=1.0)))

    assert isinstance(events[-1], Finished)
    numbers = {each["id"]: each["scale"] for each in engine.bodies[0]["lora"]}
    assert (numbers, len(engine.bodies)) == ({0: 1.0, 1: 0.0}, 1)


async def test_a_url_that_has_lost_an_adapter_gets_no_request() -> None:
    engine, other = loaded("vllm", "sql"), loaded("vllm", "sql")
    engine.attempts = [Attempt(lost_after=1)]
    async with connected(engine, other, adapters=("sql",)) as client:
        load(engine)
        status = await run_until_refused(client, adapters=applied(sql=1.0))

    assert "it has less than the others of this name: the adapter 'sql'" in status.problem


def on_load(engine: ByteEngine, *names: str, status: int = 200) -> list[dict[str, Any]]:
    """Let the engine load these adapters when it is told to; what it is told comes here. As
    vLLM does, it answers with text."""
    told: list[dict[str, Any]] = []

    def answer() -> tuple[int, Any]:
        told.append(engine.posted[-1])
        if told[-1]["lora_name"] not in names:
            return status, {"error": {"message": "no such folder"}}
        has_loaded = [each["lora_name"] for each in told if each["lora_name"] in names]
        load(engine, *has_loaded)
        return 200, b"Success: LoRA adapter added successfully."

    engine.routes[LOAD_ROUTES[engine.kind]] = answer
    return told


LOAD_ROUTES = {"vllm": "/v1/load_lora_adapter", "sglang": "/load_lora_adapter"}


@pytest.mark.parametrize("kind", LOAD_ROUTES)
async def test_an_engine_is_told_to_load_what_it_lacks_from_the_folder(kind: str) -> None:
    """Again after it was started anew; one that it has, it is not told to load."""
    engine = loaded(kind)
    told = on_load(engine, "a", "sql")
    async with connected(engine, adapters=("a", "sql"), adapter_folder="/loras") as client:
        await client.run(byte_request(0, adapters=applied(sql=1.0)))
        paths = {each["lora_name"]: each["lora_path"] for each in told}
        await engine.stop()
        load(engine, "a")
        await engine.start(int(engine.url.rpartition(":")[2]))
        events = await client.run(byte_request(1, adapters=applied(sql=1.0)))

    assert paths == {"a": "/loras/a", "sql": "/loras/sql"}
    assert isinstance(events[-1], Finished)
    assert [each["lora_name"] for each in told] == ["a", "sql", "sql"]
    assert listed(client)[-1] == frozenset({"a", "sql"})


@pytest.mark.parametrize("kind", LOAD_ROUTES)
@pytest.mark.parametrize("status", [400, 401, 404, 500])
async def test_an_adapter_that_the_engine_does_not_load_is_missing(kind: str, status: int) -> None:
    """The engine serves all else."""
    engine = loaded(kind, "sql")
    told = on_load(engine, status=status)
    async with connected(engine, adapters=("a", "sql"), adapter_folder="/loras") as client:
        events = await client.run(byte_request(adapters=applied(sql=1.0)))

    assert isinstance(events[-1], Finished)
    assert [each["lora_name"] for each in told] == ["a"]
    assert listed(client) == [frozenset({"sql"})]


async def test_an_adapter_that_was_not_loaded_is_not_tried_at_each_listing() -> None:
    engine = loaded("vllm")
    told, lists, has_listed = on_load(engine, status=400), 0, asyncio.Event()

    def models() -> tuple[int, Any]:
        nonlocal lists
        lists += 1
        if lists > 2:  # a listing has two requests
            has_listed.set()
        return 200, {"data": [{"id": engine.model, "max_model_len": 512, "root": "r"}]}

    async with connected(engine, adapters=("sql",), adapter_folder="/loras"):
        lists = 0
        engine.routes["/v1/models"] = models
        async with asyncio.timeout(20):
            await has_listed.wait()
    assert len(told) == 1


async def test_llama_server_is_refused_with_a_folder_of_adapters() -> None:
    engine = loaded("llama_server", "sql")
    await engine.start()
    target = UpstreamTarget("bytes", [engine.url], adapters=("sql",), adapter_folder="/loras")
    endpoints = await first_probe(target, ByteVocabulary())
    await engine.stop()
    assert "it loads no adapters at run time" in endpoints.status[0].problem


ODD: dict[str, tuple[Any, str]] = {
    "no list": ({"adapters": []}, "the answer of /lora-adapters is no list"),
    "no objects": (["sql"], "an adapter is no JSON object"),
    "no numbers": ([{"id": "1", "path": "sql.gguf"}, {"path": "sql.gguf"}, {"id": 1}], ""),
}


@pytest.mark.parametrize(("answer", "problem"), ODD.values(), ids=ODD)
async def test_an_odd_list_of_adapters_names_none(answer: Any, problem: str) -> None:
    engine = ByteEngine(REPLY)
    engine.routes["/lora-adapters"] = lambda: (200, answer)
    await engine.start()
    target = UpstreamTarget("bytes", [engine.url], adapters=("sql",))
    endpoints = await first_probe(target, ByteVocabulary())
    await engine.stop()

    assert problem in endpoints.status[0].problem
    assert (endpoints.probed is None) == bool(problem)
    assert endpoints.probed is None or endpoints.probed.adapters == frozenset()
