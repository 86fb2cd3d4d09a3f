"""Signal handling in a separate process."""

import asyncio
import signal
import sys

import pytest

PROGRAM = """
import asyncio
from svc_kit.lifecycle import stop_on_signals

async def main():
    stopping = stop_on_signals()
    print("ready", flush=True)
    await stopping.wait()
    print("draining", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_drains_and_the_second_exits(number: signal.Signals) -> None:
    """So that a slow drain can be interrupted without SIGKILL."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    ready = await process.stdout.readline()
    process.send_signal(number)
    draining = await process.stdout.readline()
    process.send_signal(number)
    status = await process.wait()

    assert (ready, draining) == (b"ready\n", b"draining\n")
    assert status in {-number, 1, 130}
