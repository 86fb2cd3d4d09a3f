"""Kills of engine, frontend, gateway and supervisor."""

import asyncio
import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import grpc
import openai
import pytest
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import inference_service_pb2 as pb

from inference_svc.engine_process.main import NICENESS
from tests.e2e.conftest import KillableCorral
from tests.support.engine_log import FREED, assert_freed_at_once
from tests.support.plain_http import plain_client
from tests.support.processes import Ends
from tests.support.rpc import PARIS, Rpc, connect, endless_chat, make_chat, read_delta, read_error
from tests.support.sdk import capital_of_france, start_story
from tests.support.services import MODEL, RESTART_RETRIES, corral_up, expect_restart, run_inference

pytestmark = pytest.mark.e2e

ENGINE = "inference_svc.engine_process.main"
FRONTEND = "serve inference"


def niceness_of_threads(pid: int) -> Counter[int]:
    """How many threads of a process have each niceness."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return Counter(os.getpriority(os.PRIO_PROCESS, int(each.name)) for each in threads)


# --- the engine is killed -------------------------------------------------------------------------


async def test_a_killed_engine_ends_streams_and_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams fail as UNAVAILABLE with RetryInfo, and the next call waits for the new engine."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")  # no threads of numpy, which do nothing here
    with run_inference(tmp_path) as service:
        async with connect(service.target) as rpc:
            streams = [rpc.inference.Chat(endless_chat()) for _ in range(2)]
            for stream in streams:
                await read_delta(stream)
            engine = service.program.member(ENGINE).pid
            with Ends([engine]) as ends:
                with expect_restart(service.target):
                    os.kill(engine, signal.SIGKILL)
                    errors = [await read_error(stream) for stream in streams]
                answer = await rpc.chat(make_chat())
                running_pids = ends.wait(0)
            info = await rpc.engine.GetServerInfo(engine_pb.GetServerInfoRequest())
            niceness = niceness_of_threads(info.engine_pid)
            engines = [member for member in service.program.family() if ENGINE in member.command]

    for error in errors:
        assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "ENGINE_RESTARTING")
        assert error.retry_after is not None
        assert error.retry_after >= 1
    assert answer.text[0] == PARIS
    assert not running_pids
    assert [member.pid for member in engines] == [info.engine_pid] != [engine]
    assert info.engine_restarts == 1
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert niceness.keys() == {own, own + NICENESS}  # what computes yields to the frontend
    assert niceness[own] == 2  # those of the pipe


async def test_a_killed_engine_ends_http_streams_with_an_error_event(
    killable: KillableCorral, sdk: openai.AsyncOpenAI
) -> None:
    """The SDK raises during the stream, and its next request succeeds by retrying."""
    stream = await start_story(sdk)
    os.kill(killable.program.member(ENGINE).pid, signal.SIGKILL)
    with pytest.raises(openai.APIError) as torn:
        async for _ in stream:
            pass
    answer = await capital_of_france(sdk.with_options(max_retries=RESTART_RETRIES))

    assert torn.value.code == "engine_restarting"
    assert answer == PARIS


async def test_requests_are_refused_with_a_retry_delay_while_the_engine_restarts(
    killable: KillableCorral, sdk: openai.AsyncOpenAI, killable_rpc: Rpc
) -> None:
    """UNAVAILABLE with RetryInfo, and 503 with Retry-After."""
    mark, hidden = killable.program.bookmark(), killable.model.with_suffix(".away")
    killable.model.rename(hidden)  # prevents the new engine from loading
    try:
        os.kill(killable.program.member(ENGINE).pid, signal.SIGKILL)
        await killable.program.line("engine cannot start", after=mark)
        over_grpc = await read_error(killable_rpc.inference.Chat(make_chat()))
        with pytest.raises(openai.InternalServerError) as over_http:
            await capital_of_france(sdk)
        info = await killable_rpc.engine.GetServerInfo(engine_pb.GetServerInfoRequest())
        async with plain_client(killable) as plain:
            probes = [(await plain.get(path)).status_code for path in ("/health", "/ready")]
    finally:
        hidden.rename(killable.model)
    answer = await capital_of_france(sdk.with_options(max_retries=RESTART_RETRIES))

    assert (over_grpc.code, over_grpc.reason) == (
        grpc.StatusCode.UNAVAILABLE,
        "ENGINE_RESTARTING",
    )
    assert (over_grpc.retry_after or 0) >= 1
    assert (over_http.value.status_code, over_http.value.code) == (503, "engine_restarting")
    assert int(over_http.value.response.headers["retry-after"]) >= 1
    assert info.engine_state == engine_pb.ENGINE_STATE_RESTARTING
    assert info.engine_pid == 0
    assert probes == [200, 503]
    assert answer == PARIS


async def test_a_model_file_with_the_same_bytes_is_reloaded(
    killable: KillableCorral, killable_rpc: Rpc
) -> None:
    """After it was copied back or touched, by a restarted engine and on request."""
    request = pb.GetModelRequest(model=MODEL)
    while not (await killable_rpc.inference.GetModel(request)).model.digest:
        pass  # until the digest is computed; each request is a round trip
    copy = shutil.copy(killable.model, f"{killable.model}.copy")
    shutil.move(copy, killable.model)
    with expect_restart(killable.target):
        os.kill(killable.program.member(ENGINE).pid, signal.SIGKILL)
    after_death = await killable_rpc.chat(make_chat())
    os.utime(killable.model, (0, 0))
    await killable_rpc.engine.UnloadModel(engine_pb.UnloadModelRequest(model=MODEL))
    await killable_rpc.engine.LoadModel(engine_pb.LoadModelRequest(model=MODEL, wait=True))
    after_load = await killable_rpc.chat(make_chat())
    os.utime(killable.model, (1, 1))
    with expect_restart(killable.target):
        os.kill(killable.program.member(ENGINE).pid, signal.SIGKILL)
    after_both = await killable_rpc.chat(make_chat())

    assert [each.text[0] for each in (after_death, after_load, after_both)] == [PARIS] * 3


async def test_the_engine_of_a_killed_frontend_exits_and_both_are_restarted(
    killable: KillableCorral, sdk: openai.AsyncOpenAI
) -> None:
    """Streams end with an error, and no process is orphaned."""
    program, mark = killable.program, killable.program.bookmark()
    stream = await start_story(sdk)
    frontend = program.member(FRONTEND)
    family = [member.pid for member in program.family() if member.session == frontend.session]
    with Ends(family) as ends:
        os.kill(frontend.pid, signal.SIGKILL)
        with pytest.raises(openai.APIError):
            async for _ in stream:
                pass
        with pytest.raises(openai.InternalServerError) as refused:
            await capital_of_france(sdk)
        remaining = await asyncio.to_thread(ends.wait, 5)
    await program.line("inference was killed by SIGKILL", after=mark)
    await program.line("inference is back", after=mark)

    assert len(family) > 2, "frontend, engine and template children"
    assert not remaining
    assert refused.value.status_code == 503
    assert await capital_of_france(sdk) == PARIS
    assert program.member(ENGINE).pid not in family


async def test_a_killed_gateway_is_restarted_and_frees_its_slots(
    killable: KillableCorral, sdk: openai.AsyncOpenAI, killable_rpc: Rpc
) -> None:
    """Its connections are closed and their requests cancelled. gRPC streams continue."""
    program, mark = killable.program, killable.program.bookmark()
    beside = killable_rpc.inference.Chat(endless_chat())
    await read_delta(beside)
    stream = await start_story(sdk)
    os.kill(program.member("serve gateway").pid, signal.SIGKILL)
    freed = await program.line(FREED, after=mark, service="engine")
    with pytest.raises(openai.APIConnectionError):
        async for _ in stream:
            pass
    await program.line("gateway was killed by SIGKILL", after=mark)
    await program.line("gateway is back", after=mark)
    await read_delta(beside)
    beside.cancel()

    assert_freed_at_once(freed, "decode")
    assert await capital_of_france(sdk) == PARIS


async def test_a_killed_frontend_without_a_supervisor_leaves_no_processes(tmp_path: Path) -> None:
    """The engine and the sandbox children exit by themselves."""
    with run_inference(tmp_path) as service:
        async with connect(service.target) as rpc:
            stream = rpc.inference.Chat(endless_chat())
            await read_delta(stream)
            with Ends(member.pid for member in service.program.family()) as ends:
                service.program.signal(signal.SIGKILL)
                remaining = await asyncio.to_thread(ends.wait, 5)
            error = await read_error(stream)

    assert not remaining
    assert error.code is grpc.StatusCode.UNAVAILABLE


async def test_a_killed_supervisor_leaves_no_processes(tmp_path: Path) -> None:
    """The services exit when `corral up` does."""
    with corral_up(tmp_path) as corral:
        family = corral.program.family()
        with Ends(member.pid for member in family) as ends:
            corral.program.signal(signal.SIGKILL)
            remaining = await asyncio.to_thread(ends.wait, 10)

    assert len(family) >= 4, "two services, an engine and a template child"
    assert not remaining
