"""Runs the client tests of tests/clients/ against a server of its own, for `make test-clients`.

The tests are those of another language's test runner: this starts `corral up` on free ports with
the bundled model, installs the locked client, and lets the runner speak last.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = ROOT / "tests" / "clients"
START_PATIENCE_S = 120.0
STOP_PATIENCE_S = 60.0


def main() -> int:
    """Run the tests; 0 when they pass, or when this machine has no Node."""
    missing = [program for program in ("node", "npm") if shutil.which(program) is None]
    if missing:
        print(f"SKIPPED tests/clients/openai.test.mjs: no {' and no '.join(missing)} here")
        return 0
    quiet = ["npm", "ci", "--silent", "--ignore-scripts"]
    if subprocess.run(quiet, cwd=CLIENTS, check=False).returncode != 0:
        print("npm ci failed in tests/clients: is the package registry reachable?", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as data_dir, running_server(Path(data_dir)) as base_url:
        environment = {**os.environ, "CORRAL_BASE_URL": base_url}
        command = ["node", "--test", "--test-reporter=spec", "openai.test.mjs"]
        return subprocess.run(command, cwd=CLIENTS, env=environment, check=False).returncode


@contextmanager
def running_server(data_dir: Path) -> Iterator[str]:
    """`corral up` on free ports; yields the base URL once it is ready, and stops it."""
    gateway, inference = free_address(), free_address()
    log_path = data_dir / "corral.log"
    command = [sys.executable, "-m", "corral_cli", "up", "--data-dir", str(data_dir)]
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
        process.wait(STOP_PATIENCE_S)


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


if __name__ == "__main__":
    sys.exit(main())
