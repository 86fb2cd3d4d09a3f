"""A Corral of one's own for a tool that speaks to its API: started, waited for, stopped."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ANNOUNCEMENT = "Ctrl-C stops everything"
"""The end of what `corral up` prints once each of its services has answered. `/ready` would not do:
the gateway serves while control still starts."""
CONTROL_ANYWHERE = ("--control-listen", "127.0.0.1:0")  # only the gateway speaks to it
START_PATIENCE_S = 120.0
STOP_PATIENCE_S = 60.0


@contextmanager
def running_server(data_dir: Path, options: Sequence[str] = ()) -> Iterator[str]:
    """`corral up` on free ports; yields the base URL once it is ready, and stops it."""
    gateway, inference = free_address(), free_address()
    log_path = data_dir / "corral.log"
    command = [sys.executable, "-m", "corral_cli", "up", "--data-dir", str(data_dir), *options]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*command, "--listen", gateway, "--inference-listen", inference, *CONTROL_ANYWHERE],
            cwd=ROOT,
            stdout=log,
            stderr=log,
        )
    try:
        if not wait_until_ready(process, log_path):
            sys.exit(f"corral up did not get ready:\n{log_path.read_text(errors='replace')}")
        yield f"http://{gateway}/v1"
    finally:
        process.terminate()
        try:
            process.wait(STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_address() -> str:
    """A loopback address that nothing listens on at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def wait_until_ready(process: "subprocess.Popen[bytes]", log_path: Path) -> bool:
    """Read the log until it says so; False when the process ended or the patience is over."""
    deadline = time.monotonic() + START_PATIENCE_S
    while process.poll() is None and time.monotonic() < deadline:
        if ANNOUNCEMENT in log_path.read_text(errors="replace"):
            return True
        time.sleep(0.1)
    return False
