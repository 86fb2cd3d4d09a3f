"""Starts the engine process, with malloc set up for huge pages, and reads and writes its pipe."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from inference_svc.engine.events import Event
from inference_svc.engine.request import Command
from inference_svc.engine_client.messages import (
    DevicesTaken,
    EngineConfig,
    EngineStartFailed,
    LoadProgress,
    Ready,
    SnapshotDone,
)

_VARIABLE = "GLIBC_TUNABLES"
_TUNABLES = {
    # Weights in huge pages: 10.5 ms a step instead of 11.5 (half a billion parameters, one row).
    "glibc.malloc.hugetlb": 1,
    # glibc raises it to 32 MB by itself; freed prefix states then leave holes in the heap.
    "glibc.malloc.mmap_threshold": 1 << 20,  # bytes
    # Setting the threshold above ends glibc's own choice of this one: a copy of 262,000 logits
    # would take 0.4 ms instead of 0.02, since its memory is released and requested each time.
    "glibc.malloc.trim_threshold": 64 << 20,  # bytes
}


def with_tunables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which malloc does so, but for what the operator has set. Other C
    libraries do not read it."""
    chosen = environment.get(_VARIABLE, "")
    ours = [f"{name}={value}" for name, value in _TUNABLES.items() if name not in chosen]
    return {**environment, _VARIABLE: ":".join(filter(None, (chosen, *ours)))}


_ENGINE = "inference_svc.engine_process.main"
FromEngine = Ready | EngineStartFailed | LoadProgress | SnapshotDone | DevicesTaken | list[Event]


class EngineProcess:
    """One life of the engine process.

    `on_message` and then, once, `on_death` are called on the event loop. Make it on the loop's own
    thread: the child dies with the thread that spawned it.
    """

    def __init__(
        self,
        boot: EngineConfig,
        *,
        on_message: Callable[[FromEngine], None],
        on_death: Callable[[int], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._on_death = on_death
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", _ENGINE, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=with_tunables(os.environ),
        )
        theirs.close()
        self._pipe: Connection[Any, Any] = Connection(ours.detach())
        self._outbox: SimpleQueue[Command | EngineConfig | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="engine-events", daemon=True)
        self._writer = threading.Thread(target=self._write, name="engine-commands", daemon=True)
        self._outbox.put(boot)
        self._reader.start()
        self._writer.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, command: Command) -> None:
        """Queue a command; it is lost if the process dies, which calls `on_death`."""
        self._outbox.put(command)

    def kill(self) -> None:
        """End the process at once."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)

    async def close(self) -> None:
        """End the process and wait until it is gone and both threads are."""
        self.kill()
        self._outbox.put(None)
        await asyncio.to_thread(self._join)

    def _join(self) -> None:
        self._process.wait()
        self._reader.join()
        self._writer.join()

    def _read(self) -> None:
        try:
            while True:
                self._tell(self._on_message, self._pipe.recv())
        except (EOFError, OSError):
            pass
        code = self._process.wait()
        self._outbox.put(None)
        self._tell(self._on_death, code)

    def _write(self) -> None:
        try:
            while (message := self._outbox.get()) is not None:
                self._pipe.send(message)
        except OSError:
            return

    def _tell(self, callback: Callable[[Any], None], argument: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, argument)


def describe_exit(code: int) -> str:
    """A process's exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
