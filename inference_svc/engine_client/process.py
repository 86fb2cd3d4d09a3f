"""Starts a child process, such as an engine, with malloc tuned for huge pages, and reads and writes
its pipe."""

import asyncio
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from inference_svc.engine.events import Event
from inference_svc.engine.request import Command
from inference_svc.engine_client.messages import (
    DeviceMemoryReport,
    EngineConfig,
    EngineStartFailed,
    LoadProgress,
    Ready,
    SnapshotDone,
)

_VARIABLE = "GLIBC_TUNABLES"
_TUNABLES = {
    # Weights in huge pages: 10.5 ms per step instead of 11.5 (0.5B parameters, one row).
    "glibc.malloc.hugetlb": 1,
    # glibc raises the threshold to 32 MB; freed prefix states then leave holes in the heap.
    "glibc.malloc.mmap_threshold": 1 << 20,  # bytes
    # Setting mmap_threshold stops glibc from adjusting trim_threshold: a copy of 262,000 logits
    # would take 0.4 ms instead of 0.02, because its memory is released and requested each time.
    "glibc.malloc.trim_threshold": 64 << 20,  # bytes
}


def with_malloc_tunables(environment: Mapping[str, str]) -> dict[str, str]:
    """Add glibc's malloc tunables to an environment; those that it already sets are kept."""
    existing = environment.get(_VARIABLE, "")
    added = [f"{name}={value}" for name, value in _TUNABLES.items() if name not in existing]
    return {**environment, _VARIABLE: ":".join(filter(None, (existing, *added)))}


_ENGINE = "inference_svc.engine_process.main"
EngineMessage = (
    Ready | EngineStartFailed | LoadProgress | SnapshotDone | DeviceMemoryReport | list[Event]
)


Received = TypeVar("Received")
Sent = TypeVar("Sent")


class ChildProcess(Generic[Received, Sent]):
    """A running module of this package at the other end of a pipe; `first` is its first message.

    `on_message`, and at the end `on_exit` with the exit code, are called on the event loop. Create
    it on the loop's thread: the child is killed when the thread that spawned it ends.
    """

    def __init__(
        self,
        module: str,
        first: object,
        *,
        on_message: Callable[[Received], None],
        on_exit: Callable[[int], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._on_exit = on_exit
        own_end, child_end = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(child_end.fileno())],
            pass_fds=[child_end.fileno()],
            stdin=subprocess.DEVNULL,
            # A process that aborts would start a debugger, if there is one, and end seconds later.
            env={**with_malloc_tunables(os.environ), "GGML_NO_BACKTRACE": "1"},
        )
        child_end.close()
        self._pipe: Connection[Any, Any] = Connection(own_end.detach())
        self._outbox: SimpleQueue[Any] = SimpleQueue()
        name = module.split(".")[1]
        self._reader = threading.Thread(target=self._read, name=f"{name}-events", daemon=True)
        self._writer = threading.Thread(target=self._write, name=f"{name}-commands", daemon=True)
        self._outbox.put(first)
        self._reader.start()
        self._writer.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, command: Sent) -> None:
        """Queue a message; it is lost if the process ends, which calls `on_exit`."""
        self._outbox.put(command)

    def kill(self) -> None:
        """Kill the process, which calls `on_exit`."""
        self._process.kill()

    def resume(self) -> None:
        """Let the process continue if it is stopped."""
        self._process.send_signal(signal.SIGCONT)

    async def close(self) -> None:
        """Kill the process and wait until it and both threads have ended."""
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
                self._call(self._on_message, self._pipe.recv())
        except (EOFError, OSError):
            pass
        code = self._process.wait()
        self._outbox.put(None)
        self._call(self._on_exit, code)

    def _write(self) -> None:
        try:
            while (message := self._outbox.get()) is not None:
                self._pipe.send(message)
        except OSError:
            return

    def _call(self, callback: Callable[[Any], None], argument: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, argument)


class EngineProcess(ChildProcess[EngineMessage, Command]):
    """A running engine process."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        on_message: Callable[[EngineMessage], None],
        on_exit: Callable[[int], None],
    ) -> None:
        super().__init__(_ENGINE, config, on_message=on_message, on_exit=on_exit)


_MAX_PAUSE_S = 10.0
_HEALTHY_S = 10.0


class RestartBackoff:
    """Pauses before restarts: none after the first early exit, then longer ones if it repeats."""

    def __init__(self) -> None:
        self._early_exits = 0

    def next_pause(self, uptime_s: float) -> float:
        """The seconds to wait after an exit; `uptime_s` is how long the process served."""
        self._early_exits = 0 if uptime_s >= _HEALTHY_S else self._early_exits + 1
        if self._early_exits <= 1:
            return 0.0
        return min(0.5 * 2.0 ** (self._early_exits - 2), _MAX_PAUSE_S)


_PR_SET_PDEATHSIG = 1


def open_parent_pipe(fd: int) -> "Connection[Any, Any]":
    """Open the pipe in a `ChildProcess`, which is then killed when its parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Ctrl-C reaches the whole process group; the frontend drains first and then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return Connection(fd)


def describe_exit(code: int) -> str:
    """Describe the exit code of a process for people."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
