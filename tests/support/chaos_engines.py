"""Engines of others that are killed and started again, each at a URL of its own."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.engine_servers import PROGRAMS, STAND_IN, engine_command
from tools.corral_server import free_address

KIND: Final = "llama_server" if Path(PROGRAMS["llama_server"]).is_file() else STAND_IN
"""llama-server where CORRAL_LLAMA_SERVER names its program."""


class KilledEngine:
    """An engine at one URL, in a process that is killed."""

    def __init__(self, folder: Path) -> None:
        address = free_address()
        self.url = f"http://{address}"
        self._folder = folder
        self._command = engine_command(KIND, folder, address)
        self._program = self._command.start(folder)

    def wait(self) -> None:
        """Wait until it listens. Raises ProgramFailed."""
        self._command.wait(self._program, self.url)

    def replace(self) -> None:
        """Kill it, and start another one at the same URL."""
        self.kill()
        self._program = self._command.start(self._folder)

    def kill(self) -> None:
        """Kill it with all its processes."""
        os.killpg(self._program.pid, signal.SIGKILL)
        self._program.wait()


@contextmanager
def two_engines(folder: Path) -> Iterator[tuple[KilledEngine, KilledEngine]]:
    """Run two engines of one kind, which serve the bundled model."""
    engines = KilledEngine(folder), KilledEngine(folder)
    try:
        for engine in engines:
            engine.wait()
        yield engines
    finally:
        for engine in engines:
            engine.kill()
