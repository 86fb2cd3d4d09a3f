"""`corral up --replicas`: requests go on when one of several inference services is killed."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1.engine_service_pb2_grpc import EngineServiceStub
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from corral_cli.up.up_lock import read_running
from svc_kit.rpc.client import open_channel
from tests.support.plain_http import plain_client
from tests.support.sdk_batches import make_chat_line, read_batch, start_batch, wait_for_batch
from tests.support.services import MODEL, Corral, corral_up, start, wait_until_serving

pytestmark = pytest.mark.e2e
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "list",
        "schema": {
            "type": "array",
            "items": {"type": "string", "minLength": 6, "maxLength": 12},
            "minItems": 60,
        },
    },
}
COMMON: dict[str, Any] = {"model": MODEL, "max_tokens": 500, "deterministic": True, "stream": True}
CHAT = {**COMMON, "messages": [{"role": "user", "content": "Tell me a story."}]}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("chat/completions", {**CHAT, "temperature": 0, "ignore_eos": True}),
    "seeded choices": ("chat/completions", {**CHAT, "seed": 3, "n": 2, "ignore_eos": True}),
    "a schema": (
        "chat/completions",
        {**CHAT, "seed": 4, "max_tokens": 500, "response_format": SCHEMA},
    ),
    "stop texts": (
        "chat/completions",
        {**CHAT, "temperature": 0, "ignore_eos": True, "stop": ["never in it", "zzz"]},
    ),
    "completion": (
        "completions",
        {**COMMON, "prompt": "Once", "seed": 5, "logprobs": 1, "ignore_eos": True},
    ),
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    with corral_up(tmp_path_factory.mktemp("pair"), "--replicas", "2") as corral:
        yield corral


def targets_of(corral: Corral) -> list[str]:
    running = read_running(corral.program.directory / "data")
    assert running is not None
    return [running.addresses[name, "listen"] for name in ("inference", "inference-2")]


async def num_running(corral: Corral) -> dict[str, int]:
    """The sequences that run on each replica."""
    token = (corral.program.directory / "data/service-token").read_text().strip()
    running = {}
    for target in targets_of(corral):
        async with open_channel(target, token=token) as channel:
            load = (await EngineServiceStub(channel).GetLoad(engine_pb.GetLoadRequest())).load
            running[target] = load.num_running
    return running


def kill_replica(corral: Corral, target: str) -> None:
    os.kill(pid_of(corral, target), signal.SIGKILL)


def pid_of(corral: Corral, target: str) -> int:
    """The process of a replica."""
    for process in corral.program.family():
        variables = Path(f"/proc/{process.pid}/environ").read_bytes().decode().split("\0")
        is_frontend = "serve inference" in process.command
        if is_frontend and f"CORRAL_INFERENCE_LISTEN={target}" in variables:
            return process.pid
    raise AssertionError(f"no process listens on {target}")


async def wait_for_restart(target: str) -> None:
    async with open_channel(target) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        await health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=60)
    await asyncio.to_thread(wait_until_serving, target)


async def events_of(
    client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    async with client.stream("POST", f"/v1/{path}", json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


def seen(events: list[dict[str, Any]]) -> dict[int, str]:
    """The texts of the choices, with reasons and tokens with log probabilities."""
    texts: dict[int, str] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        delta = choice.get("delta") or {}
        text = choice.get("text") or delta.get("content") or ""
        tokens = "".join((choice.get("logprobs") or {}).get("tokens", ()))
        end = choice["finish_reason"] or ""
        texts[choice["index"]] = texts.get(choice["index"], "") + text + tokens + end
    return texts


@pytest.mark.parametrize("case", CASES)
async def test_a_stream_goes_on_when_its_replica_is_killed(pair: Corral, case: str) -> None:
    """The client gets the tokens that it would have got."""
    path, body = CASES[case]
    async with plain_client(pair) as client:
        undisturbed = [event async for event in events_of(client, path, body)]
        events, killed = await disturb(pair, client, case, signal.SIGKILL)

        assert seen(events) == seen(undisturbed)
        assert "error" not in events[-1]
    await wait_for_restart(killed)


async def test_a_replica_that_only_seemed_dead_does_not_answer_twice(pair: Corral) -> None:
    """It is noticed by its missing answers to pings."""
    path, body = CASES["chat"]
    async with plain_client(pair) as client:
        undisturbed = [event async for event in events_of(client, path, body)]
        events, stopped = await disturb(pair, client, "chat", signal.SIGSTOP)
        os.kill(pid_of(pair, stopped), signal.SIGCONT)
        while any((await num_running(pair)).values()):
            pass

        assert seen(events) == seen(undisturbed)
        assert "error" not in events[-1]
        assert seen([event async for event in events_of(client, path, body)]) == seen(undisturbed)


async def disturb(
    pair: Corral, client: httpx.AsyncClient, case: str, signal_number: signal.Signals
) -> tuple[list[dict[str, Any]], str]:
    """Send a signal to the replica of a stream. Return the stream's events, and the replica."""
    disturbed = None
    while disturbed is None:  # a stream may end before its replica is found
        events = []
        async with aclosing(events_of(client, *CASES[case])) as stream:
            async for event in stream:
                events.append(event)
                if len(events) == 4:
                    busy = (each for each, count in (await num_running(pair)).items() if count)
                    if disturbed := next(busy, None):
                        os.kill(pid_of(pair, disturbed), signal_number)
    return events, disturbed


async def test_a_stored_response_and_a_batch_are_complete_when_replicas_are_killed(
    pair: Corral,
) -> None:
    """The response has the text that it would have had, and each line one answer."""
    body = {
        "model": MODEL,
        "input": "Tell me a story.",
        "max_output_tokens": 400,
        "background": True,
        "temperature": 0,
        "deterministic": True,
        "ignore_eos": True,
    }
    lines = [
        make_chat_line(f"line-{number}", deterministic=True, temperature=0) for number in range(12)
    ]
    for line in lines:
        line["body"]["max_tokens"] = 200
    async with plain_client(pair) as client:
        undisturbed = await answer_of(client, body)
        with openai.OpenAI(base_url=pair.api, api_key="unused", max_retries=0) as blocking:
            batch = await asyncio.to_thread(start_batch, blocking, lines)
            answer = asyncio.create_task(answer_of(client, body))
            killed = None
            while killed is None:
                busy = (each for each, count in (await num_running(pair)).items() if count)
                if killed := next(busy, None):
                    kill_replica(pair, killed)
            await asyncio.to_thread(wait_for_batch, pair, batch.id)
            ended = await asyncio.to_thread(read_batch, blocking, batch.id)

        assert await answer == undisturbed
        assert len(ended.completed) == len(lines)
        texts = {
            line["response"]["body"]["choices"][0]["message"]["content"]
            for line in ended.completed.values()
        }
        assert len(texts) == 1
    await wait_for_restart(killed)


async def answer_of(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    """The text of a response that is created in the background."""
    created = (await client.post("/v1/responses", json=body)).json()
    while created["status"] in ("queued", "in_progress"):
        created = (await client.get(f"/v1/responses/{created['id']}")).json()
    assert created["status"] in ("completed", "incomplete")
    text: str = created["output"][0]["content"][0]["text"]
    return text


async def test_new_requests_are_answered_while_a_replica_is_away(pair: Corral) -> None:
    target = targets_of(pair)[0]
    body = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
    async with plain_client(pair) as client:
        kill_replica(pair, target)
        answers = await asyncio.gather(
            *(
                client.post("/v1/chat/completions", json={**body, "user": str(number)})
                for number in range(8)
            )
        )

        assert [answer.status_code for answer in answers] == [200] * 8
    await wait_for_restart(target)


async def test_a_full_home_passes_a_conversation_on(pair: Corral) -> None:
    """Two sequences run and two wait there; of the others some run elsewhere."""
    endless = {**CHAT, "max_tokens": 12_000, "ignore_eos": True, "prompt_cache_key": "crowd"}
    async with plain_client(pair) as client:
        streams = [events_of(client, "chat/completions", endless) for _ in range(8)]
        readers = [asyncio.create_task(anext(stream)) for stream in streams]
        try:
            async with asyncio.timeout(60):
                while not all(running := (await num_running(pair)).values()):
                    pass
        finally:
            await asyncio.gather(*readers)
            for stream in streams:
                await stream.aclose()

        assert sum(running) <= 4


async def test_operators_see_and_abort_what_runs_on_any_replica(
    pair: Corral, tmp_path: Path
) -> None:
    """Over HTTP, and by `corral top`, which finds the replicas in the data folder."""
    bodies = [
        {**CHAT, "max_tokens": 12_000, "ignore_eos": True, "prompt_cache_key": str(number)}
        for number in range(8)
    ]
    async with plain_client(pair) as client:
        streams = [events_of(client, "chat/completions", body) for body in bodies]
        for stream in streams:
            await anext(stream)
        top = await asyncio.to_thread(run_top, tmp_path, pair)
        listed = (await client.get("/admin/requests")).json()["requests"]
        ids = [each["request_id"] for each in listed]
        aborted = (await client.post("/admin/requests/abort", json={"request_ids": ids})).json()
        ends = [[event async for event in stream][-1] for stream in streams]

        assert {each["replica"] for each in listed} == {*targets_of(pair)}
        assert len(ids) == len(streams)
        assert {each["kind"] for each in aborted["outcomes"]} == {"KIND_ABORTED"}
        assert all("error" in event for event in ends)
        assert [each["replica"] for each in top["replicas"]] == targets_of(pair)
        assert top["running"] == sum(each["running"] for each in top["replicas"]) > 0


def run_top(folder: Path, corral: Corral) -> dict[str, Any]:
    data = str(corral.program.directory / "data")
    flags = ("top", "--data-dir", data, "--once", "--interval", "0.1", "--json")
    with start(folder, *flags) as program:
        assert program.wait() == 0
        found: dict[str, Any] = json.loads(program.stdout[-1].text)
        return found
