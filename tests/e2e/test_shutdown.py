"""Shutdown of Corral, and errors at startup."""

import asyncio
import re
import signal
import socket
import time
from pathlib import Path

import grpc
import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from inference_svc.models.sources import BUNDLED_PATH
from tests.support.rpc import connect, endless_chat, make_chat, read_delta, read_error
from tests.support.services import (
    MODEL,
    Corral,
    corral_up,
    expect_not_serving,
    run_inference,
    start,
)

pytestmark = pytest.mark.e2e

TOKENS = 400


# --- stopping -------------------------------------------------------------------------------------


async def test_running_streams_finish_when_corral_is_stopped(tmp_path: Path) -> None:
    """By Ctrl-C. New requests are refused; the exit code is 0 and no process is left."""
    with corral_up(tmp_path) as corral:
        program = corral.program
        async with corral.sdk() as client:
            streams = [await start_stream(client) for _ in range(2)]
            for stream in streams:
                await anext(aiter(stream))
            program.interrupt()
            await program.line("^draining$", service="gateway")
            with pytest.raises((openai.InternalServerError, openai.APIConnectionError)) as refused:
                await start_stream(client)
            endings = [await read_stream(stream) for stream in streams]
        code = await asyncio.to_thread(program.wait)
        remaining = await asyncio.to_thread(program.left_over)

    if isinstance(refused.value, openai.InternalServerError):
        assert (refused.value.status_code, refused.value.code) == (503, "draining")
    assert endings == [("length", TOKENS)] * 2
    assert code == 0
    assert not remaining
    assert program.stderr[-1].text == "corral: stopped"
    assert "Traceback" not in "".join(line.text for line in program.stderr)


async def start_stream(client: openai.AsyncOpenAI) -> openai.AsyncStream[ChatCompletionChunk]:
    """Start a stream of known length."""
    return await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Tell me a story."}],
        max_tokens=TOKENS,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )


async def read_stream(stream: openai.AsyncStream[ChatCompletionChunk]) -> tuple[str | None, int]:
    reason, tokens = None, 0
    async for chunk in stream:
        for choice in chunk.choices:
            reason = choice.finish_reason or reason
        if chunk.usage:
            tokens = chunk.usage.completion_tokens
    return reason, tokens


async def test_an_orderly_stop_logs_no_warning(tmp_path: Path) -> None:
    """Although inference stops after control: the next start reports what it has not reported."""
    with corral_up(tmp_path, inference={"usage_interval_s": 0.1}) as corral:
        program = corral.program
        async with connect(corral.target) as rpc:
            first, second = [rpc.inference.Chat(endless_chat()) for _ in range(2)]
            for stream in (first, second):
                await read_delta(stream)
            program.interrupt()
            await program.line("^draining$", service="inference")
            first.cancel()
            await program.line("^usage cannot be reported now", service="inference")
            await program.line("^limits cannot be leased now", service="inference")
            second.cancel()
        code = await asyncio.to_thread(program.wait)

    logged = [line.fields for line in program.stderr if line.fields]
    assert [line for line in logged if line["level"] not in ("debug", "info")] == []
    assert code == 0


async def test_a_stopped_service_drains_over_grpc(tmp_path: Path) -> None:
    """Running streams finish, new ones get DRAINING, the exit code is 0."""
    with run_inference(tmp_path) as service:
        async with connect(service.target) as rpc:
            stream = rpc.inference.Chat(endless_chat(stopping={"max_tokens": 2 * TOKENS}))
            await read_delta(stream)
            service.program.signal(signal.SIGTERM)
            await service.program.line("^draining$", service="inference")
            refused = await read_error(rpc.inference.Chat(make_chat()))
            finished = [response.finished.completion_tokens async for response in stream]
        code = await asyncio.to_thread(service.program.wait)

    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert refused.retry_after is not None
    assert max(finished) == 2 * TOKENS
    assert code == 0


def test_a_service_that_is_stopped_while_its_model_loads_ends_quietly(tmp_path: Path) -> None:
    """With exit code 0, and without an error in the log. It loads when its port is open."""
    listening = {"listen": "127.0.0.1:0"}
    with start(tmp_path, "serve", "inference", inference=listening) as program:
        program.wait_for_line("^serving gRPC on ", service="inference")
        program.signal(signal.SIGTERM)
        code = program.wait()
        log = [line.fields for line in program.stderr]

    assert code == 0
    assert [line for line in log if line.get("level") in ("error", "critical")] == []


async def test_calls_are_accepted_during_the_drain_delay(tmp_path: Path) -> None:
    """While health is NOT_SERVING already, so that load balancers have time to notice."""
    with run_inference(tmp_path, {"server.drain_delay_s": 4}) as service:
        async with connect(service.target) as rpc:
            with expect_not_serving(service.target):
                service.program.signal(signal.SIGTERM)
            answered = await rpc.inference.Chat(make_chat()).read()
        code = await asyncio.to_thread(service.program.wait)

    assert answered is not grpc.aio.EOF
    assert code == 0


async def test_a_second_ctrl_c_stops_immediately(tmp_path: Path) -> None:
    """Without waiting for streams. Before, the order and what is waited for are printed."""
    with corral_up(tmp_path) as corral:
        async with connect(corral.target) as rpc:
            stream = rpc.inference.Chat(endless_chat())
            await read_delta(stream)
            corral.program.interrupt()
            await corral.program.line("^corral: waiting for inference: [1-9][0-9]* running")
            hurried_at = time.monotonic()
            corral.program.interrupt()
            await asyncio.to_thread(corral.program.wait)
            took = time.monotonic() - hurried_at
            remaining = await asyncio.to_thread(corral.program.left_over)
            stream.cancel()

    assert took < 25, "the grace would have been 30 s"
    assert not remaining
    stopping = [line.text for line in corral.program.stderr if line.text.startswith("corral: stop")]
    names = ["stopping gateway", "stopping control", "stopping inference", "stopped"]
    assert stopping == [f"corral: {name}" for name in names]


# --- startup errors -------------------------------------------------------------------------------

# The default ports may be used by a connection of another process.
LISTENERS = ("--listen", "--inference-listen", "--control-listen")
ANY_PORTS = [word for flag in LISTENERS for word in (flag, "127.0.0.1:0")]


def startup_error(tmp_path: Path, *arguments: str | Path, code: int = 1) -> list[str]:
    """Run a command that cannot start; return its messages."""
    with start(tmp_path, *arguments) as program:
        assert program.wait() == code
        lines = [line.text for line in program.stderr]
    assert not any("Traceback" in line for line in lines), lines
    return lines


def test_a_model_that_llama_cpp_refuses_is_reported_in_one_line(tmp_path: Path) -> None:
    """A valid header with an unknown architecture."""
    model_file = tmp_path / "strange.gguf"
    data = BUNDLED_PATH.read_bytes()
    name = b"general.architecture"
    offset = data.index(name) + len(name) + 12
    model_file.write_bytes(data[:offset] + b"lladl" + data[offset + 5 :])
    settings = {"models": [str(model_file)], "listen": "127.0.0.1:0"}
    with start(tmp_path, "serve", "inference", inference=settings) as program:
        code = program.wait()
        lines = [line.text for line in program.stderr if not line.fields]

    assert code == 1
    assert any("strange.gguf" in line for line in lines), lines
    assert not any("Traceback" in line for line in lines), lines


def test_models_are_served_while_the_database_of_control_is_away(tmp_path: Path) -> None:
    """The ready line says so, and the gateway does not count as ready for load balancers."""
    control = {"database_url": "postgresql://127.0.0.1:1/corral"}
    with corral_up(tmp_path, control=control) as corral:
        line = corral.program.wait_for_line(r"metrics +(http.*)", stream="stdout")[1]
        gateway = re.findall(r"http://(\S+)/metrics", line)[0]
        with httpx.Client(trust_env=False) as client:
            probe = client.get(f"http://{gateway}/readyz")
            models = client.get(f"{corral.api}/models")
        corral.program.wait_for_line(r"control exited with code 75.*continue without it")
        corral.program.wait_for_line(r"is ready after .*, without control: ", stream="stdout")

    assert (probe.status_code, models.status_code) == (503, 200)


def test_nothing_is_served_if_the_control_service_can_never_start(tmp_path: Path) -> None:
    """Its message says why."""
    shard = tmp_path / "data/control/blobs/ab"
    shard.mkdir(parents=True)
    (shard / ("ab" * 16)).touch()
    lines = startup_error(tmp_path, "up", *ANY_PORTS)

    assert any("holds files of an unknown database" in line for line in lines)
    assert lines[-1].startswith("corral: control could not start: it exited with code 1")


def test_a_port_in_use_is_reported_in_one_line(tmp_path: Path) -> None:
    """With the address, before a model is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        lines = startup_error(tmp_path, "up", *ANY_PORTS, "--listen", address)

    assert len(lines) == 1
    assert lines[0].startswith(f"corral: {address} is in use")


def test_a_second_corral_on_the_same_data_folder_says_who_holds_it(up: Corral) -> None:
    """Before a service is started, also if its ports are free."""
    lines = startup_error(up.program.directory, "up", *ANY_PORTS, code=75)

    assert len(lines) == 1
    assert lines[0].startswith("corral: another `corral up` uses the data folder")
    assert f"(process {up.program.pid} on {socket.gethostname()}, since 20" in lines[0]
