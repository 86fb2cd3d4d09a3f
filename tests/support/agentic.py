"""agentic-api, which keeps responses in front of an engine, as Corral does.

`CORRAL_AGENTIC` is its program. Tests with it are skipped where the variable is not set.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.processes import Program
from tools.corral_server import free_address

VARIABLE: Final = "CORRAL_AGENTIC"
_PROGRAM: Final = os.environ.get(VARIABLE, "")


@dataclass
class Agentic:
    """A running agentic-api at `url`, whose database outlives it."""

    url: str
    _start: Callable[[], Program]
    _program: Program

    def kill(self) -> None:
        self._program.signal(signal.SIGKILL)
        self._program.wait()

    def restart(self) -> None:
        """Kill it, and start it again with its database."""
        self.kill()
        self._program = self._start()


@contextmanager
def run_agentic(engine_url: str, folder: Path) -> Iterator[Agentic]:
    """Run it in front of an engine. Leaving stops it."""
    if not _PROGRAM:
        pytest.skip(f"agentic-api is not installed ({VARIABLE})")
    host, _, port = free_address().rpartition(":")
    command = [_PROGRAM, "--llm-api-base", f"{engine_url}/v1", "--gateway-host", host]
    command += ["--gateway-port", port, "--db-url", f"sqlite://{folder}/agentic.db"]

    def start() -> Program:
        program = Program(command, environment={}, directory=folder)
        program.wait_for_line("gateway listening", stream="stdout")
        return program

    agentic = Agentic(f"http://{host}:{port}", start, start())
    try:
        yield agentic
    finally:
        agentic.kill()
