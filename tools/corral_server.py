"""A temporary Corral server for tools that call its API."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ANNOUNCEMENT = "Ctrl-C stops everything"
"""End of the line that `corral up` prints when all services are ready. The gateway's `/ready` may
succeed while the control service is still starting."""
ANY_CONTROL_PORT = ("--control-listen", "127.0.0.1:0")  # only the gateway connects to it
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0


@contextmanager
def running_server(
    data_dir: Path, options: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Run `corral up` on free ports, with more environment variables. Yields the base URL when it
    is ready; exits if it fails."""
    gateway, inference = free_address(), free_address()
    log_path = data_dir / "corral.log"
    command = [sys.executable, "-m", "corral_cli", "up", "--data-dir", str(data_dir), *options]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*command, "--listen", gateway, "--inference-listen", inference, *ANY_CONTROL_PORT],
            cwd=ROOT,
            env={**os.environ, **(variables or {})},
            stdout=log,
            stderr=log,
        )
    try:
        if not wait_until_ready(process, log_path):
            sys.exit(f"corral up failed to start:\n{log_path.read_text(errors='replace')}")
        yield f"http://{gateway}/v1"
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_address() -> str:
    """Loopback address with a port that is currently free."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def wait_until_ready(process: "subprocess.Popen[bytes]", log_path: Path) -> bool:
    """Wait for the announcement in the log; False if the process exits or the time is over."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        if ANNOUNCEMENT in log_path.read_text(errors="replace"):
            return True
        time.sleep(0.1)
    return False
