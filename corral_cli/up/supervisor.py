"""The supervisor: starts services, restarts those that die, stops all in order."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from corral_cli.up.parent_watch import ParentPipe

READY_POLL_S = 0.05
_MOST_DOUBLINGS = 32
"""Beyond any delay, and far from where a float overflows."""


class ServiceFailed(Exception):
    """A service cannot be kept running; the text is one line for the operator."""


@dataclass(frozen=True)
class Service:
    """What the supervisor needs to know of one service."""

    name: str
    command: Callable[[int], Sequence[str]]
    """The argument list, given the file descriptor of the child's end of the lifeline."""
    is_ready: Callable[[], Awaitable[bool]]
    """Whether it is ready; polled until it is."""
    environment: Mapping[str, str] | None = None
    """The child's whole environment. None: the supervisor's."""
    stop_patience_s: float = 40.0
    """Seconds from SIGTERM to SIGKILL."""
    is_vital: bool = True
    """Whether the others stop where it cannot be kept running. If not, it is tried for ever."""


@dataclass(frozen=True)
class RestartPolicy:
    """When a service that died is started again, and when that is given up."""

    first_delay_s: float = 0.5
    longest_delay_s: float = 15.0
    stable_after_s: float = 30.0
    """A life at least this long clears the count of failures."""
    failures_allowed: int = 5
    """Maximum number of quick failures in a row; unlimited for services that are not vital."""

    def delay_s(self, failures: int) -> float:
        """Seconds to wait after so many quick failures in a row (at least one)."""
        doublings = min(failures - 1, _MOST_DOUBLINGS)
        return float(min(self.longest_delay_s, self.first_delay_s * 2**doublings))


@dataclass
class _Running:
    """A service's current process and what it has been through."""

    service: Service
    process: asyncio.subprocess.Process | None = None
    was_ready: bool = False
    failures: int = 0
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether it is ready, or is not vital and has failed."""


class Supervisor:
    """Runs services in the given order of starting; they are stopped in the reverse order."""

    def __init__(
        self,
        services: Sequence[Service],
        report: Callable[[str], None],
        policy: RestartPolicy | None = None,
    ) -> None:
        self._running = [_Running(service) for service in services]
        self._report = report
        self._policy = policy or RestartPolicy()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()

    def hurry(self) -> None:
        """Do not wait for anything any more: kill what is still being stopped."""
        self._hurry.set()

    async def run(self, stop: asyncio.Event, on_ready: Callable[[], Awaitable[None]]) -> None:
        """Keep everything running until `stop` is set; no child is left when this returns.

        `on_ready` runs once, when every service has answered; one that is not vital may have failed
        instead. Raises ServiceFailed where a vital one ends before it was ever ready, or dies too
        often.
        """
        lifeline = ParentPipe()
        keepers = [
            asyncio.create_task(self._keep(running, lifeline.child_end))
            for running in self._running
        ]
        announcer = asyncio.create_task(self._announce(on_ready))
        stopped = asyncio.create_task(stop.wait())
        try:
            waiting: set[asyncio.Task[Any]] = {*keepers, announcer, stopped}
            while not stopped.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            self._stopping.set()
            announcer.cancel()
            stopped.cancel()
            await self._stop_all()
            await asyncio.gather(*keepers, announcer, stopped, return_exceptions=True)
            lifeline.close()

    async def _announce(self, on_ready: Callable[[], Awaitable[None]]) -> None:
        for running in self._running:
            await running.settled.wait()
        await on_ready()

    async def _keep(self, running: _Running, lifeline_fd: int) -> None:
        """Start one service again and again, until stopping begins or it fails for good."""
        while not self._stopping.is_set():
            started = time.monotonic()
            code = await self._run_once(running, lifeline_fd)
            if not self._stopping.is_set():
                delay_s = self._judge(running, code, time.monotonic() - started)
                await _wait_for(self._stopping, delay_s)

    async def _run_once(self, running: _Running, lifeline_fd: int) -> int:
        """Start the process, wait for its end and return its exit code; its group ends with it."""
        service = running.service
        process = await asyncio.create_subprocess_exec(
            *service.command(lifeline_fd),
            env=service.environment,
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(lifeline_fd,),
            start_new_session=True,
        )
        running.process = process
        ended = asyncio.create_task(process.wait())
        probe = asyncio.create_task(self._wait_until_ready(running))
        try:
            if self._stopping.is_set():  # the order came while the process was being made
                await self._stop(process, service)
            await asyncio.wait({ended, probe}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                probe.result()
            return await ended
        finally:
            probe.cancel()
            ended.cancel()
            _kill_group(process.pid)

    async def _wait_until_ready(self, running: _Running) -> None:
        while not await running.service.is_ready():  # noqa: ASYNC110
            await asyncio.sleep(READY_POLL_S)  # another process sets no event of ours
        if running.was_ready or running.failures:
            self._report(f"{running.service.name} is back")
        running.was_ready = True
        running.settled.set()

    def _judge(self, running: _Running, code: int, lived_s: float) -> float:
        """What the end of a process means: seconds until the next try. Raises ServiceFailed."""
        name, how, vital = running.service.name, describe_exit(code), running.service.is_vital
        if vital and not running.was_ready:
            raise ServiceFailed(f"{name} could not start: it {how} (its own message is above)")
        stable = lived_s >= self._policy.stable_after_s
        running.failures = 1 if stable else running.failures + 1
        if vital and running.failures > self._policy.failures_allowed:
            raise ServiceFailed(
                f"{name} {how} {running.failures} times in a row,"
                f" each within {self._policy.stable_after_s:g} s; giving up"
            )
        delay_s = self._policy.delay_s(running.failures)
        rest = "" if vital else " (the rest goes on without it)"
        self._report(f"{name} {how}; starting it again in {delay_s:g} s{rest}")
        if not vital:
            running.settled.set()
        return delay_s

    async def _stop_all(self) -> None:
        for running in reversed(self._running):
            process = running.process
            if process is not None and process.returncode is None:
                self._report(f"stopping {running.service.name}")
                await self._stop(process, running.service)

    async def _stop(self, process: asyncio.subprocess.Process, service: Service) -> None:
        _signal(process, signal.SIGTERM)
        ended = asyncio.create_task(process.wait())
        hurried = asyncio.create_task(self._hurry.wait())
        await asyncio.wait(
            {ended, hurried}, timeout=service.stop_patience_s, return_when=asyncio.FIRST_COMPLETED
        )
        hurried.cancel()
        if not ended.done():
            self._report(f"{service.name} did not stop; killing it")
            _kill_group(process.pid)
        await ended


async def _wait_for(event: asyncio.Event, patience_s: float) -> None:
    """Return when the event is set or the time is over, whichever is first."""
    try:
        async with asyncio.timeout(patience_s):
            await event.wait()
    except TimeoutError:
        pass  # both ends are wanted


def describe_exit(code: int) -> str:
    """An exit code as asyncio gives it, in words."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


async def run_until_signalled(
    supervisor: Supervisor, on_ready: Callable[[], Awaitable[None]]
) -> None:
    """Run until Ctrl-C, SIGTERM or a lost terminal; the second Ctrl-C waits for nothing."""
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            supervisor.hurry()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)
    await supervisor.run(stop, on_ready)


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except ProcessLookupError:
        pass  # it ended by itself meanwhile


def _kill_group(leader: int) -> None:
    """End whatever a child left behind; the engine process is in its group."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # nothing is left (macOS says PermissionError for a group of zombies)
