"""The gateway as a process."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from svc_kit.network import Address, parse_address
from tests.support.fake_inference import FakeInference, Script
from tests.support.loopback_gateway import LOOPBACK, PATIENCE_S, run_inference_service
from tests.support.raw_http import open_connection

BODY = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "stream": True}
ANNOUNCEMENT = "serving HTTP on http://"


@asynccontextmanager
async def run_process(**environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `python -m gateway` with these settings; kill it at the end."""
    settings = {f"CORRAL_GATEWAY_{name.upper()}": value for name, value in environment.items()}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway"),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | settings,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def read_address(process: asyncio.subprocess.Process) -> Address:
    assert process.stderr is not None
    async for line in process.stderr:
        message = json.loads(line)["message"]
        if message.startswith(ANNOUNCEMENT):
            return parse_address(message.removeprefix(ANNOUNCEMENT))
    raise AssertionError("the process ended before it served")


async def test_sigterm_lets_streams_finish() -> None:
    """The exit code is 0."""
    fake, gate = FakeInference(), asyncio.Event()
    fake.script = Script(gate=gate, gate_at=1)
    async with (
        run_inference_service(fake) as inference,
        run_process(
            listen=LOOPBACK, management_listen=LOOPBACK, inference_target=str(inference.address)
        ) as process,
        open_connection(await read_address(process)) as connection,
    ):
        await connection.request("/v1/chat/completions", BODY)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        while json.loads(await process.stderr.readline())["message"] != "draining":
            pass
        gate.set()
        events = await connection.chunks()
        connection.leave()
        status, log = await process.wait(), await process.stderr.read()

    assert events[-1] == b"data: [DONE]\n\n"
    assert status == 0
    assert b"Traceback" not in log


async def test_invalid_settings_are_reported() -> None:
    """Without a traceback; the exit code is 2."""
    async with run_process(listen="127.0.0.1", nonsense="1") as process:
        _, text = await process.communicate()

    assert process.returncode == 2
    assert b"CORRAL_GATEWAY_NONSENSE" in text
    assert b"CORRAL_GATEWAY_LISTEN" in text
    assert b"Traceback" not in text
