"""`corral up --replicas`: requests go on when one of several inference services is killed."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1.engine_service_pb2_grpc import EngineServiceStub
from corral.inference.v1.load_pb2 import Load
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from corral_cli.up.up_lock import read_running
from inference_svc.models.sources import BUNDLED_FOLDER
from svc_kit.rpc.client import open_channel
from tests.e2e.conftest import PIRATE_FILE
from tests.support.plain_http import plain_client
from tests.support.processes import PATIENCE_S
from tests.support.sdk_batches import make_chat_line, read_batch, start_batch, wait_for_batch
from tests.support.seam_cases import ADAPTER, CASES, MOVED, Case, answers
from tests.support.services import MODEL, Corral, corral_up, start, wait_until_serving

pytestmark = pytest.mark.e2e
STORY = CASES["chat"].body
NUM_WRITTEN = 400
"""So many tokens take longer than the interval in which those of whole answers are sent."""
MIROSTAT = {**STORY, "temperature": 0.8, "mirostat": 2, "seed": 8}
WHOLE = {**CASES, "mirostat": CASES["chat"]._replace(body=MIROSTAT)}
TOGETHER = [
    ("chat", "completion"),
    ("a schema", "logprobs of a chat"),
    ("parallel calls", "reasoning"),
    ("a picture", "an echo"),
    ("seeded choices",),
    ("stop texts", "logprobs of a completion"),
    ("logprobs of choices",),
    ("a call", "a required call"),
    ("reasoning with logprobs", "a thinking budget"),
    ("an adapter",),
    ("logprobs of a prompt",),
]
"""As many sequences at a time as a replica has slots, at one home, which those of an adapter do not
share."""
QUICK = TOGETHER[:4]
"""Those of `make test`; `make prove` has the others."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    folder, adapter = tmp_path_factory.mktemp("pair"), f"{ADAPTER}={BUNDLED_FOLDER / PIRATE_FILE}"
    with corral_up(folder, "--replicas", "2", "--adapter", adapter) as corral:
        yield corral


def targets_of(corral: Corral) -> list[str]:
    running = read_running(corral.program.directory / "data")
    assert running is not None
    return [running.addresses[name, "listen"] for name in ("inference", "inference-2")]


async def num_running(corral: Corral) -> dict[str, int]:
    """The sequences that run on each replica."""
    return {target: load.num_running for target, load in (await loads(corral)).items()}


async def loads(corral: Corral) -> dict[str, Load]:
    token = (corral.program.directory / "data/service-token").read_text().strip()
    found = {}
    for target in targets_of(corral):
        async with open_channel(target, token=token) as channel:
            reply = await EngineServiceStub(channel).GetLoad(engine_pb.GetLoadRequest())
            found[target] = reply.load
    return found


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
    client: httpx.AsyncClient, path: str, body: Mapping[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    async with client.stream("POST", f"/v1/{path}", json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


async def collect(client: httpx.AsyncClient, case: Case) -> list[dict[str, Any]]:
    return [event async for event in events_of(client, case.path, case.body)]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(
            names, id=" and ".join(names), marks=() if names in QUICK else pytest.mark.slow
        )
        for names in TOGETHER
    ],
)
async def test_streams_go_on_when_their_replica_is_killed(
    pair: Corral, names: tuple[str, ...]
) -> None:
    """The client gets what it would have got."""
    cases = [CASES[name] for name in names]
    async with plain_client(pair) as client:
        undisturbed = await asyncio.gather(*(collect(client, case) for case in cases))
        for case, events in zip(cases, undisturbed, strict=True):
            assert all(getattr(answer, case.shows) for answer in answers(events).values())
        num_moved = 0
        while num_moved < len(cases):  # some may have ended before the kill
            mark = pair.program.bookmark()
            streams, killed = await disturb(pair, client, cases, signal.SIGKILL)
            await wait_for_restart(killed)

            assert [events[-1] for events in streams if "error" in events[-1]] == []
            for events, expected in zip(streams, undisturbed, strict=True):
                assert answers(events) == answers(expected)
            num_moved = sum(MOVED in line.message for line in pair.program.stderr[mark:])


@pytest.mark.parametrize(
    "names",
    [
        ("chat", "mirostat"),
        pytest.param(("a schema", "a call"), marks=pytest.mark.slow),
        pytest.param(("seeded choices",), marks=pytest.mark.slow),
        pytest.param(("parallel calls", "completion"), marks=pytest.mark.slow),
    ],
    ids=lambda names: " and ".join(names),
)
async def test_answers_that_are_not_streamed_are_what_they_would_have_been(
    pair: Corral, names: tuple[str, ...]
) -> None:
    """Those with mirostat begin again, the others go on; their tokens come in few messages."""
    requests = [(WHOLE[name].path, {**WHOLE[name].body, "stream": False}) for name in names]
    async with plain_client(pair) as client:
        undisturbed = [await choices_of(client, *request) for request in requests]
        num_moved, num_wanted = 0, len(requests) + names.count("mirostat")
        while num_moved < num_wanted:  # some may have ended before the kill, or not begun
            mark = pair.program.bookmark()
            asked = asyncio.gather(*(choices_of(client, *request) for request in requests))
            killed = await kill_while_it_runs(pair, asked)
            assert await asked == undisturbed
            if killed is not None:
                await wait_for_restart(killed)
            num_moved = sum(MOVED in line.message for line in pair.program.stderr[mark:])


async def choices_of(client: httpx.AsyncClient, path: str, body: Mapping[str, Any]) -> Any:
    """The choices of an answer, without the ids of calls, which are random."""
    answer = await client.post(f"/v1/{path}", json={**body, "prompt_cache_key": "whole"})
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    for choice in choices:
        for call in (choice.get("message") or {}).get("tool_calls") or ():
            del call["id"]
    return choices


async def kill_while_it_runs(pair: Corral, asked: "asyncio.Future[Any]") -> str | None:
    """Kill a replica that has written some; return it, or None if all had ended before."""
    before = {name: load.completion_tokens_total for name, load in (await loads(pair)).items()}
    while not asked.done():
        now = (await loads(pair)).items()
        busy = (
            name
            for name, load in now
            if load.num_running and load.completion_tokens_total > before[name] + NUM_WRITTEN
        )
        if killed := next(busy, None):
            kill_replica(pair, killed)
            return killed
    return None


async def test_embeddings_are_made_elsewhere_when_their_replica_is_killed(pair: Corral) -> None:
    inputs = [f"{number} " + "Once upon a time, there was a cat. " * 30 for number in range(60)]
    body = {"model": MODEL, "input": inputs, "encoding_format": "base64"}
    async with plain_client(pair) as client:
        undisturbed = (await client.post("/v1/embeddings", json=body, timeout=PATIENCE_S)).json()[
            "data"
        ]
        asked = asyncio.create_task(client.post("/v1/embeddings", json=body, timeout=PATIENCE_S))
        killed = None
        while killed is None:
            assert not asked.done()
            busy = (name for name, load in (await loads(pair)).items() if load.embedding.num_inputs)
            killed = next(busy, None)
        kill_replica(pair, killed)
        answer = await asked

        assert answer.status_code == 200
        assert answer.json()["data"] == undisturbed
    await wait_for_restart(killed)


async def test_a_model_that_one_replica_has_is_listed_and_answers(pair: Corral) -> None:
    """Wherever the home of the prompt is."""
    token = (pair.program.directory / "data/service-token").read_text().strip()
    for number, target in enumerate(targets_of(pair)):
        async with open_channel(target, token=token) as channel:
            added = engine_pb.AddModelAliasRequest(model=MODEL, alias=f"only-{number}")
            await EngineServiceStub(channel).AddModelAlias(added)
    async with plain_client(pair) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        (aliases,) = (each["aliases"] for each in listed if each["id"] == MODEL)
        for number, alias in enumerate(("only-0", "only-1") * 2):
            body = {"model": alias, "max_tokens": 4, "user": str(number)}
            messages = [{"role": "user", "content": f"Hi {number}"}]
            asked = {**body, "messages": messages}
            answer = await client.post("/v1/chat/completions", json=asked)
            assert answer.status_code == 200, answer.text
            embedded = {"model": alias, "input": "a fox"}
            assert (await client.post("/v1/embeddings", json=embedded)).status_code == 200

    assert {"only-0", "only-1"} <= {*aliases}


async def test_what_cannot_go_on_exactly_ends_with_the_reason(pair: Corral) -> None:
    """Mirostat, whose state does not follow from the tokens."""
    case = WHOLE["mirostat"]
    async with plain_client(pair) as client:
        (events,), killed = await disturb(pair, client, [case], signal.SIGKILL)
        error = events[-1]["error"]

        assert error["code"] == "generation_lost"
        assert "mirostat" in error["message"]
    await wait_for_restart(killed)


async def test_a_replica_that_only_seemed_dead_does_not_answer_twice(pair: Corral) -> None:
    """It is noticed by its missing answers to pings."""
    case = CASES["chat"]
    async with plain_client(pair) as client:
        undisturbed = await collect(client, case)
        (events,), stopped = await disturb(pair, client, [case], signal.SIGSTOP)
        os.kill(pid_of(pair, stopped), signal.SIGCONT)
        while any((await num_running(pair)).values()):
            pass

        assert "error" not in events[-1]
        assert answers(events) == answers(undisturbed)
        assert answers(await collect(client, case)) == answers(undisturbed)


async def disturb(
    pair: Corral, client: httpx.AsyncClient, cases: Sequence[Case], signal_number: signal.Signals
) -> tuple[list[list[dict[str, Any]]], str]:
    """Send a signal to the replica of streams that have begun. Return the events of each, and the
    replica."""
    processes = {target: pid_of(pair, target) for target in targets_of(pair)}
    streams: list[list[dict[str, Any]]] = [[] for _ in cases]
    have_begun = asyncio.Barrier(len(cases) + 1)

    async def read(case: Case, events: list[dict[str, Any]]) -> None:
        body = {**case.body, "prompt_cache_key": cases[0].row}
        async for event in events_of(client, case.path, body):
            events.append(event)
            if len(events) == 4:
                await have_begun.wait()

    async with asyncio.TaskGroup() as readers:
        for case, events in zip(cases, streams, strict=True):
            readers.create_task(read(case, events))
        await have_begun.wait()
        running = await num_running(pair)
        busy = max(running, key=lambda target: running[target])
        os.kill(processes[busy], signal_number)
    return streams, busy


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
    """Two sequences run and two wait there; of the others some run elsewhere, at the latest when
    its load has been reported: until then a replica that was idle gets most of them."""
    endless = {**STORY, "max_tokens": 12_000, "ignore_eos": True, "prompt_cache_key": "crowd"}
    async with plain_client(pair) as client, asyncio.timeout(60):
        while any((await num_running(pair)).values()):
            pass
        crowd = [events_of(client, "chat/completions", endless) for _ in range(4)]
        for stream in crowd:
            await anext(stream)
        while sorted((await num_running(pair)).values()) != [0, 2]:
            pass
        while not all((running := await num_running(pair)).values()):
            surplus = events_of(client, "chat/completions", endless)
            await anext(surplus)
            crowd.append(surplus)
            if len(crowd) > 8:
                await crowd.pop(4).aclose()
        for stream in crowd:
            await stream.aclose()

        assert sum(running.values()) <= 4


async def test_operators_see_and_abort_what_runs_on_any_replica(
    pair: Corral, tmp_path: Path
) -> None:
    """Over HTTP, and by `corral top`, which finds the replicas in the data folder."""
    bodies = [
        {**STORY, "max_tokens": 12_000, "ignore_eos": True, "prompt_cache_key": str(number)}
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
