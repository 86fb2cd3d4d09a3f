"""The parent's side of a sandboxed child process."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from svc_kit.sandbox.frames import HEADER, read_reply, write_request
from svc_kit.sandbox.jobs import WAITING_FACTOR, FailureKind, Job, JobFailed

_START_DEADLINE_S = 30.0
_READY_BYTES = 8192
_EXIT_DEADLINE_S = 1.0
FOREIGN_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""A process that ends by one was ended by others: what it worked on is not to blame."""
_SHORTEST_WAIT_S = 0.02
_PROCESS_CPU_CLOCK = 2
"""CPUCLOCK_SCHED in the clock id that Linux has for each process."""
_SOCKET_BUFFER_BYTES = 4 << 20
"""Files of megabytes change hands with few switches between the processes."""
# Our environment may contain secrets, so that the child inherits only the path of native libraries.
# The rest prevents threads of numerical libraries, use of the GPU, and debuggers after an abort.
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
    "GGML_NO_BACKTRACE": "1",
}
_INHERITED = ("LD_LIBRARY_PATH",)


class ChildFailedToStart(Exception):
    """A child process exited or timed out before it was ready."""


class SandboxProcess:
    """A child that runs one job at a time. Close it once `usable` is false."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._child = child
        self._reader = reader
        self._writer = writer
        self.usable = True
        self.jobs_done = 0
        self.keys: set[str] = set()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    @classmethod
    async def start(cls, preload: tuple[str, ...]) -> Self:
        """Start a child and wait until it is ready. Raises ChildFailedToStart."""
        parent_end, child_end = socket.socketpair()
        for end in (parent_end, child_end):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        with child_end:
            try:
                reader, writer = await asyncio.open_connection(sock=parent_end)
            except BaseException:
                parent_end.close()
                raise
            try:
                child = await _await_spawn(asyncio.to_thread(_spawn, child_end.fileno(), preload))
            except OSError as problem:
                writer.close()
                raise ChildFailedToStart(str(problem)) from problem
            except BaseException:
                writer.close()
                raise
        process = cls(child, reader, writer)
        try:
            async with asyncio.timeout(_START_DEADLINE_S):
                read_reply(await process._receive(_READY_BYTES))
        except (TimeoutError, JobFailed) as failed:
            await process.close()
            raise ChildFailedToStart(str(failed) or "it was not ready in time") from None
        except BaseException:
            await process.close()
            raise
        return process

    async def run(self, job: Job, payload: Mapping[str, Any]) -> Any:
        """Run one job and return its result. Raises JobFailed."""
        self.jobs_done += 1
        try:
            return read_reply(await self._exchange_in_time(job, payload))
        except JobFailed as failed:
            # The memory limit leaves a large heap behind, other failures an unknown state.
            if failed.kind is not FailureKind.REFUSED:
                was_stopped = failed.kind is FailureKind.CRASHED and await self._was_stopped()
                self.kill()
                if was_stopped:
                    raise JobFailed(FailureKind.UNAVAILABLE, "the process was killed") from None
            raise
        except BaseException:
            self.kill()
            raise

    async def _exchange_in_time(self, job: Job, payload: Mapping[str, Any]) -> bytes:
        """The reply of a job that computes for less than its deadline. Raises JobFailed."""
        begun_s, used_s = self._cpu_s(), 0.0
        exchange = asyncio.ensure_future(self._exchange(job, payload))
        try:
            async with asyncio.timeout(job.deadline_s * WAITING_FACTOR):
                while used_s < job.deadline_s:
                    left_s = max(job.deadline_s - used_s, _SHORTEST_WAIT_S)
                    await asyncio.wait((exchange,), timeout=left_s)
                    if exchange.done():
                        return exchange.result()
                    used_s = self._cpu_s() - begun_s
        except TimeoutError:
            problem = f"it could compute for only {used_s:.2g} of its {job.deadline_s:g} s"
            raise JobFailed(FailureKind.UNAVAILABLE, problem) from None
        finally:
            exchange.cancel()
        raise JobFailed(FailureKind.DEADLINE, f"it took longer than {job.deadline_s:g} s")

    def _cpu_s(self) -> float:
        """The seconds that the child has computed; the time where that cannot be read."""
        try:
            return time.clock_gettime(~self.pid << 3 | _PROCESS_CPU_CLOCK)
        except OSError:
            return time.monotonic()

    async def _was_stopped(self) -> bool:
        """Whether somebody else killed the child, such as the kernel when memory is short: a job
        exceeds its own limits in other ways."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = await asyncio.to_thread(self._child.wait, _EXIT_DEADLINE_S)
            return -code in FOREIGN_SIGNALS
        return False

    def kill(self) -> None:
        """Kill the child. `close` must still be called."""
        self.usable = False
        self._child.kill()

    async def close(self) -> None:
        """Kill the child and wait until it has exited."""
        self.kill()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        await asyncio.to_thread(self._child.wait)

    async def _exchange(self, job: Job, payload: Mapping[str, Any]) -> bytes:
        body = write_request(job, payload)
        with _connection_errors():
            self._writer.write(HEADER.pack(len(body)))
            self._writer.write(body)
            del body  # which may be large, and is not needed while the child works
            await self._writer.drain()
        return await self._receive(job.output_bytes)

    async def _receive(self, limit: int) -> bytes:
        with _connection_errors():
            (length,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
            if length > limit:
                raise JobFailed(FailureKind.OUTPUT, "its result is too long")
            return await self._reader.readexactly(length)


async def _await_spawn(
    spawning: Coroutine[Any, Any, subprocess.Popen[bytes]],
) -> subprocess.Popen[bytes]:
    """Wait for the spawn; on cancellation, kill the child."""
    task = asyncio.ensure_future(spawning)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        child = await task
        child.kill()
        await asyncio.to_thread(child.wait)
        raise


@contextlib.contextmanager
def _connection_errors() -> Iterator[None]:
    try:
        yield
    except (EOFError, ConnectionError):
        raise JobFailed(FailureKind.CRASHED, "the child process ended") from None


def _spawn(descriptor: int, preload: tuple[str, ...]) -> subprocess.Popen[bytes]:
    search_path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path)
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "svc_kit.sandbox.worker", str(descriptor), *preload],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(descriptor,),
        cwd="/",
        env={**_ENVIRONMENT, **inherited, "PYTHONPATH": search_path},
    )
