"""Starts a child process, such as an engine, with malloc tuned for huge pages, writes to its pipe,
and starts it again when it ends."""

import asyncio
import ctypes
import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from inference_svc.engine_client import child_pipe
from svc_kit.lifecycle import StartupError
from svc_kit.sandbox.process import FOREIGN_SIGNALS

log = logging.getLogger(__name__)
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


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The first message of a process that cannot serve, and exits after it."""

    problem: str


Received = TypeVar("Received")
Sent = TypeVar("Sent")


SentTo = TypeVar("SentTo", contravariant=True)


class Child(Protocol[SentTo]):
    """What is started again when it ends, on which it calls the `on_exit` that it was given."""

    @property
    def pid(self) -> int: ...

    def send(self, command: SentTo, /) -> None: ...

    def kill(self) -> None: ...

    def resume(self) -> None: ...

    async def close(self) -> None: ...


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
        self._end = own_end
        self._pipe = child_pipe.open_writer(own_end)
        self._reader = child_pipe.PipeReader(own_end, on_message)
        self._outbox: SimpleQueue[Any] = SimpleQueue()
        name = module.split(".")[1]
        self._waiter = threading.Thread(target=self._wait, name=f"{name}-exit", daemon=True)
        self._writer = threading.Thread(target=self._write, name=f"{name}-commands", daemon=True)
        self._outbox.put(first)
        self._waiter.start()
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
        self._waiter.join()
        self._writer.join()

    def _wait(self) -> None:
        code = self._process.wait()
        self._outbox.put(None)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finish, code)

    def _finish(self, code: int) -> None:
        """Deliver the last messages before the exit."""
        self._reader.close()
        self._end.close()
        self._loop.call_soon(self._on_exit, code)

    def _write(self) -> None:
        with self._pipe:
            while (message := self._outbox.get()) is not None:
                try:
                    child_pipe.send(self._pipe, message)
                except OSError:  # it has ended; if it has not, it must not wait for ever
                    self.kill()
                    return


_MAX_PAUSE_S = 10.0
_HEALTHY_S = 10.0
_MAX_STARTS = 3
"""Of a first start that others end, as the kernel does without memory."""


class SupervisedProcess(Generic[Received, Sent]):
    """A child that is started again when it ends, unless its first start fails by its own fault, or
    three times.

    `is_up` is whether it serves: from `mark_up` until it ends or is closed. `restarts` counts its
    restarts; `problem` is why it could not start last time. Call all methods on the event loop.
    """

    def __init__(
        self,
        name: str,
        model: str,
        spawn: Callable[..., Child[Sent]],
        *,
        early_exit: str,
        on_message: Callable[[Received], None],
        on_down: Callable[[bool, float], None],
        on_exit: Callable[[], None] = lambda: None,
    ) -> None:
        """`name`, as in "the engine", and `model` are for the log. `early_exit` is the problem if
        the process ends during its first start.

        `spawn` starts a `Child` with the callbacks that it is given. `on_message` gets each
        message until the process is closed. `on_down` is called when it will be started again, with
        whether it was up and the seconds until then, and `on_exit` whenever it has ended.
        """
        self.is_up = False
        self.restarts = 0
        self.problem = ""
        self._name = name
        self._model = model
        self._spawn_child = spawn
        self._early_exit = early_exit
        self._on_message = on_message
        self._on_down = on_down
        self._on_exit = on_exit
        self._child: Child[Sent] | None = None
        self._is_closed = False
        self._first_start: asyncio.Future[None] | None = None
        self._restart: asyncio.Task[None] | None = None
        self._up_since = 0.0
        self._early_exits = 0

    async def start(self) -> None:
        """Return when it is up. Raises `StartupError` on failure."""
        self._first_start = asyncio.get_running_loop().create_future()
        self._spawn()
        await self._first_start

    def mark_up(self) -> None:
        """Record that the process is ready."""
        self.is_up, self._up_since, self.problem = True, time.monotonic(), ""
        if self._first_start is not None and not self._first_start.done():
            self._first_start.set_result(None)

    async def close(self) -> None:
        """End the process. Can be called repeatedly."""
        self._is_closed, self.is_up = True, False
        if self._restart is not None:
            self._restart.cancel()
        self._fail_start(f"{self._name} was closed while it loaded")
        if self._child is not None:
            await self._child.close()

    @property
    def pid(self) -> int:
        """The process id; 0 while it is down."""
        return self._child.pid if self._child is not None and self.is_up else 0

    def send(self, message: Sent) -> None:
        """Queue a message, which is lost while the process is down."""
        if self._child is not None and self.is_up:
            self._child.send(message)

    def kill(self) -> None:
        """Kill the process, so that another one is started."""
        if self._child is not None:
            self._child.kill()

    def resume(self) -> None:
        """Let the process continue if it is stopped."""
        if self._child is not None:
            self._child.resume()

    def _spawn(self) -> None:
        self._child = self._spawn_child(on_message=self._receive, on_exit=self._end)

    def _receive(self, message: Received | StartFailed) -> None:
        if self._is_closed:
            return  # an adapter registry, for example, may already belong to a successor
        if isinstance(message, StartFailed):
            self.problem = message.problem
            self._log("%s cannot start: %s", message.problem)
            self._fail_start(message.problem)
        else:
            self._on_message(message)

    def _log(self, text: str, reason: str) -> None:
        log.error(text, self._name, reason, extra={"fields": {"model": self._model}})

    def _fail_start(self, problem: str) -> None:
        if self._first_start is not None and not self._first_start.done():
            self._first_start.set_exception(StartupError(problem))

    def _end(self, code: int) -> None:
        self._on_exit()
        if self._is_closed:
            return
        self._log("%s process ended (%s)", describe_exit(code))
        was_up, self.is_up = self.is_up, False
        pause_s = self._next_pause(time.monotonic() - self._up_since if was_up else 0.0)
        if self._first_start is None or self._first_start.done():
            if self._first_start is not None and self._first_start.exception() is not None:
                return
            self.restarts += 1
            self._on_down(was_up, pause_s)
        elif -code not in FOREIGN_SIGNALS or self._early_exits == _MAX_STARTS:
            self._fail_start(f"{self._early_exit} ({describe_exit(code)})")
            return
        self._restart = asyncio.create_task(self._restart_after(pause_s))

    def _next_pause(self, uptime_s: float) -> float:
        """None after the first early exit, then longer ones if it repeats."""
        self._early_exits = 0 if uptime_s >= _HEALTHY_S else self._early_exits + 1
        if self._early_exits <= 1:
            return 0.0
        return min(0.5 * 2.0 ** (self._early_exits - 2), _MAX_PAUSE_S)

    async def _restart_after(self, pause_s: float) -> None:
        if self._child is not None:
            await self._child.close()
        await asyncio.sleep(pause_s)
        self._spawn()


_PR_SET_PDEATHSIG = 1


def open_parent_pipe(fd: int) -> "Connection[Any, Any]":
    """Open the pipe in a `ChildProcess`, which is then killed when its parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Ctrl-C reaches the whole process group; the frontend drains first and then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return Connection(fd)


def has_unread(pipe: "Connection[Any, Any]") -> bool:
    """Whether the parent has not read all that was sent through the pipe."""
    return any(fcntl.ioctl(pipe.fileno(), termios.TIOCOUTQ, bytes(4)))


def describe_exit(code: int) -> str:
    """Describe the exit code of a process for people."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
