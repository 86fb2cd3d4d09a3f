"""A llama-server whose layers two rpc-servers compute, as the units of `deploy/` start them.

`CORRAL_LLAMA_SERVER` is its program, beside which `ggml-rpc-server` is.
"""

import re
import shlex
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from inference_svc.models.sources import BUNDLED_PATH
from tests.support.debian_packages import ROOT
from tests.support.engine_servers import PROGRAMS
from tests.support.processes import Program, ProgramFailed
from tools.corral_server import free_address

UNITS: Final = ROOT / "deploy" / "systemd"
SERVER_UNIT: Final = "llama-server.service"
WORKER_UNIT: Final = "ggml-rpc-server.service"

_ENVIRONMENT: Final = {"GGML_NO_BACKTRACE": "1"}
"""As in the units. Else it runs gdb before it ends."""


def command_of(unit: str) -> list[str]:
    """The words of the command that a unit starts."""
    text = (UNITS / unit).read_text()
    return shlex.split(re.findall(r"(?m)^ExecStart=(.*)$", text)[0])


@dataclass
class Part:
    """A process that is started again at its address."""

    command: Sequence[str]
    address: str
    ready: str
    """In the line that it prints before it listens, to this stream."""
    stream: str
    folder: Path
    program: Program | None = None

    def start(self) -> None:
        """Start it, and wait until it listens. Raises ProgramFailed."""
        self.program = Program(self.command, environment=_ENVIRONMENT, directory=self.folder)
        self.program.wait_for_line(self.ready, stream=self.stream)
        host, _, port = self.address.rpartition(":")
        while True:
            with suppress(ConnectionRefusedError):
                socket.create_connection((host, int(port))).close()
                return

    def kill(self) -> None:
        if self.program is not None:
            with self.program:
                self.program.signal(signal.SIGKILL)
                self.program.wait()


@dataclass(frozen=True)
class DividedEngine:
    """The llama-server at `url`, and those that compute for it."""

    url: str
    server: Part
    workers: Sequence[Part]

    def starts(self) -> bool:
        """Start the llama-server; return whether it serves."""
        try:
            self.server.start()
        except ProgramFailed:
            self.server.kill()
            return False
        return True

    def holders(self) -> set[str]:
        """The addresses of those that hold layers, as llama-server tells when it has loaded."""
        assert self.server.program is not None
        text = "\n".join(line.text for line in self.server.program.stderr)
        return set(re.findall(r"load_tensors: RPC\d\[(\S+)\] model buffer size", text))


@contextmanager
def run_divided_engine(folder: Path) -> Iterator[DividedEngine]:
    """Run it with the bundled model. Leaving kills all."""
    program = Path(PROGRAMS["llama_server"])
    worker_program = program.parent / "ggml-rpc-server"
    if not worker_program.is_file():
        pytest.skip("there is no ggml-rpc-server beside llama-server (CORRAL_LLAMA_SERVER)")
    addresses = [free_address() for _ in range(3)]
    workers = []
    for address in addresses[1:]:
        port = address.rpartition(":")[2]
        changed = {"50060": port, "/opt/llama.cpp/bin/ggml-rpc-server": str(worker_program)}
        command = [changed.get(word, word) for word in command_of(WORKER_UNIT)]
        command = ["stdbuf", "-oL", *command, "--threads", "1"]
        workers.append(Part(command, address, "transport", "stdout", folder))
    changed = {
        "/opt/llama.cpp/bin/llama-server": str(program),
        "8000": addresses[0].rpartition(":")[2],
        "127.0.0.1:50060,127.0.0.1:50061": ",".join(addresses[1:]),
        "/srv/models/large.gguf": str(BUNDLED_PATH),
        "32768": "2048",
    }
    command = [changed.get(word, word) for word in command_of(SERVER_UNIT)]
    command += ["--threads", "1", "--alias", "demo", "--verbosity", "4"]
    server = Part(command, addresses[0], "listening on http", "stderr", folder)
    engine = DividedEngine(f"http://{addresses[0]}", server, workers)
    try:
        for part in (*workers, engine.server):
            part.start()
        yield engine
    finally:
        for part in (engine.server, *workers):
            part.kill()
