"""Signal handling in a separate process."""

import asyncio
import signal
import socket
import sys
from pathlib import Path

import pytest

from svc_kit.lifecycle import notify_systemd

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


@pytest.mark.parametrize("is_abstract", [False, True])
def test_systemd_hears_of_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_abstract: bool
) -> None:
    """By a file or an abstract socket; without one, or if nobody listens, nothing happens."""
    notify_systemd("READY=1")
    name = f"@corral-test-{tmp_path}" if is_abstract else str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    notify_systemd("READY=1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0", 1))
        manager.settimeout(5)
        notify_systemd("STOPPING=1")
        state = manager.recv(100)

    assert state == b"STOPPING=1"


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
