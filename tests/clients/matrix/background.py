"""Programs of others that serve HTTP between a client and the server."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

START_TIMEOUT_S = 300


@contextmanager
def running(command: Sequence[str], ready_url: str, **environment: str) -> Iterator[None]:
    """Run a command in an empty folder, until it answers at `ready_url` and then to the end of the
    block. Raises RuntimeError with its output if it exits or does not answer in time."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "output.log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "HOME": folder, **environment},
                stdout=output,
                stderr=output,
            )
        try:
            if not _is_ready(process, ready_url):
                raise RuntimeError(f"{command[0]} does not start: {log.read_text()[-2000:]}")
            yield
        finally:
            process.kill()
            process.wait()


def _is_ready(process: "subprocess.Popen[bytes]", url: str) -> bool:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            if httpx.get(url, timeout=5).is_success:
                return True
        except httpx.TransportError:
            pass
        try:
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
        return False
    return False
