"""A Corral of one's own for a tool that speaks to its API: started, waited for, stopped."""

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
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
            [*command, "--listen", gateway, "--inference-listen", inference],
            cwd=ROOT,
            stdout=log,
            stderr=log,
        )
    try:
        if not wait_until_ready(process, f"http://{gateway}/ready"):
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


def wait_until_ready(process: "subprocess.Popen[bytes]", url: str) -> bool:
    """Ask until the server says yes; False when it ended or the patience is over."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback needs none
    deadline = time.monotonic() + START_PATIENCE_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with opener.open(url, timeout=5) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    return False
