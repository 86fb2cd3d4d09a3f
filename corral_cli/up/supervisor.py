"""The supervisor: starts services, restarts those that exit, and stops all in order."""

import asyncio
import functools
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from corral_cli.up.parent_watch import ParentPipe
from svc_kit.lifecycle import StartupError, StartupOutage, notify_systemd
from svc_kit.settings.reloader import has_terminal, reloading_on_hangup

_READY_POLL_S = 0.05
_FIRST_REPORT_S = 1.0
_REPORT_INTERVAL_S = 5.0
"""When it is reported what a stopping service waits for."""
_MAX_DOUBLINGS = 32
"""Keeps the exponent of the backoff in the range of a float."""


class ServiceFailed(Exception):
    """A vital service failed permanently. The message is one line for the operator."""


async def _unknown() -> int | None:
    return None


@dataclass(frozen=True)
class Service:
    name: str
    command: Callable[[int], Sequence[str]]
    """Returns the argument list for the file descriptor of the child's end of the lifeline."""
    is_ready: Callable[[], Awaitable[bool]]
    """Polled until it returns True."""
    environment: Mapping[str, str] | None = None
    """The complete environment of the child; None for that of the supervisor."""
    stop_timeout_s: float = 40.0
    """Seconds from SIGTERM to SIGKILL."""
    is_vital: bool = True
    """Whether the others stop if it fails permanently. If False, it is restarted without limit
    once it was ready, or has exited for an outage (StartupOutage)."""
    count_running: Callable[[], Awaitable[int | None]] = _unknown
    """Returns the number of its running requests, calls and jobs; None if it cannot be read."""


@dataclass(frozen=True)
class RestartPolicy:
    """Delays and limits of restarts."""

    first_delay_s: float = 0.5
    longest_delay_s: float = 15.0
    stable_after_s: float = 30.0
    """A run of at least this duration resets the count of failures."""
    failures_allowed: int = 5
    """Maximum number of consecutive failures; unlimited for services that are not vital."""

    def delay_s(self, failures: int) -> float:
        """Seconds to wait after this many consecutive failures (at least one)."""
        doublings = min(failures - 1, _MAX_DOUBLINGS)
        return float(min(self.longest_delay_s, self.first_delay_s * 2**doublings))


@dataclass
class _Running:
    """The current process of a service, and its history."""

    service: Service
    process: asyncio.subprocess.Process | None = None
    is_ready: bool = False
    was_ready: bool = False
    failures: int = 0
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it is ready, or has failed and is not vital."""
    last_exit: str = ""
    """How it ended, for the operator."""


class Supervisor:
    """Starts services in the given order and stops them in reverse order."""

    def __init__(
        self,
        services: Sequence[Service],
        report: Callable[[str], None],
        policy: RestartPolicy | None = None,
        inherited: Sequence[int] = (),
    ) -> None:
        """`inherited` are file descriptors that every process gets."""
        self._inherited = tuple(inherited)
        self._running = [_Running(service) for service in services]
        self._report = report
        self._policy = policy or RestartPolicy()
        self._stopping = asyncio.Event()
        self._kill_now = asyncio.Event()

    @property
    def away(self) -> Mapping[str, str]:
        """The services that have not been ready yet, and how they ended."""
        return {each.service.name: each.last_exit for each in self._running if not each.was_ready}

    def kill_now(self) -> None:
        """Kill services that are still stopping, without waiting for their timeout."""
        self._kill_now.set()

    async def reload(self, check_settings: Callable[[], None]) -> None:
        """Make the services that are ready read their settings again; the others read them when
        they start. If `check_settings`, which may block, raises StartupError, none does."""
        try:
            await asyncio.to_thread(check_settings)
        except StartupError as error:
            problems = " ".join(str(error).split())
            self._report(f"the settings were not reloaded by any service: {problems}")
            return
        for running in self._running:
            if running.process is not None and running.is_ready:
                _signal(running.process, signal.SIGHUP)

    async def run(self, stop: asyncio.Event, on_ready: Callable[[], Awaitable[None]]) -> None:
        """Run the services until `stop` is set. No child is left when this returns.

        `on_ready` runs once, when every service is ready, or has failed and is not vital. Raises
        ServiceFailed if a vital service exits before it was ready, or fails too often.
        """
        lifeline = ParentPipe()
        supervisors = [
            asyncio.create_task(self._supervise(running, lifeline.child_end))
            for running in self._running
        ]
        announcer = asyncio.create_task(self._announce(on_ready))
        stopped = asyncio.create_task(stop.wait())
        try:
            waiting: set[asyncio.Task[Any]] = {*supervisors, announcer, stopped}
            while not stopped.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            self._stopping.set()
            announcer.cancel()
            stopped.cancel()
            await self._stop_all()
            await asyncio.gather(*supervisors, announcer, stopped, return_exceptions=True)
            lifeline.close()

    async def _announce(self, on_ready: Callable[[], Awaitable[None]]) -> None:
        for running in self._running:
            await running.settled.wait()
        await on_ready()

    async def _supervise(self, running: _Running, lifeline_fd: int) -> None:
        """Run one service and restart it, until the supervisor stops or it fails permanently."""
        while not self._stopping.is_set():
            started = time.monotonic()
            code = await self._run_once(running, lifeline_fd)
            if not self._stopping.is_set():
                delay_s = self._handle_exit(running, code, time.monotonic() - started)
                await _wait(self._stopping, delay_s)

    async def _run_once(self, running: _Running, lifeline_fd: int) -> int:
        """Run the process and return its exit code. Its process group is killed afterwards."""
        service = running.service
        process = await asyncio.create_subprocess_exec(
            *service.command(lifeline_fd),
            env=service.environment,
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(lifeline_fd, *self._inherited),
            start_new_session=True,
        )
        running.process, running.is_ready = process, False
        exited = asyncio.create_task(process.wait())
        probe = asyncio.create_task(self._wait_until_ready(running))
        try:
            if self._stopping.is_set():  # set while the process was being created
                await self._stop(process, service)
            await asyncio.wait({exited, probe}, return_when=asyncio.FIRST_COMPLETED)
            if not exited.done():
                probe.result()
            return await exited
        finally:
            probe.cancel()
            exited.cancel()
            _kill_group(process.pid)

    async def _wait_until_ready(self, running: _Running) -> None:
        while not await running.service.is_ready():  # noqa: ASYNC110
            await asyncio.sleep(_READY_POLL_S)  # another process cannot set an asyncio event
        if running.was_ready or running.failures:
            self._report(f"{running.service.name} is back")
        running.is_ready = running.was_ready = True
        running.settled.set()

    def _handle_exit(self, running: _Running, code: int, uptime_s: float) -> float:
        """Count the failure and return the seconds until the restart. Raises ServiceFailed."""
        name, reason, vital = running.service.name, describe_exit(code), running.service.is_vital
        running.last_exit = reason
        may_be_away = running.settled.is_set() or code < 0 or code == StartupOutage.EXIT_CODE
        if not running.was_ready and (vital or not may_be_away):
            raise ServiceFailed(f"{name} could not start: it {reason} (see its message above)")
        stable = uptime_s >= self._policy.stable_after_s
        running.failures = 1 if stable else running.failures + 1
        if vital and running.failures > self._policy.failures_allowed:
            raise ServiceFailed(
                f"{name} {reason} {running.failures} times in a row,"
                f" each within {self._policy.stable_after_s:g} s; giving up"
            )
        delay_s = self._policy.delay_s(running.failures)
        note = "" if vital else " (the other services continue without it)"
        self._report(f"{name} {reason}; restarting it in {delay_s:g} s{note}")
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
        exited = asyncio.create_task(process.wait())
        kill_now = asyncio.create_task(self._kill_now.wait())
        reporter = asyncio.create_task(self._report_wait(service))
        await asyncio.wait(
            {exited, kill_now}, timeout=service.stop_timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        kill_now.cancel()
        reporter.cancel()
        if not exited.done():
            self._report(f"{service.name} did not stop; killing it")
            _kill_group(process.pid)
        await exited

    async def _report_wait(self, service: Service) -> None:
        """Report what a stopping service waits for, until cancelled."""
        killed_at = time.monotonic() + service.stop_timeout_s
        await asyncio.sleep(_FIRST_REPORT_S)
        while True:
            count = await service.count_running()
            what = "it has not exited yet" if count is None else f"{count} running requests or jobs"
            self._report(
                f"waiting for {service.name}: {what};"
                f" it is killed in {killed_at - time.monotonic():.0f} s, or by another Ctrl-C"
            )
            await asyncio.sleep(_REPORT_INTERVAL_S)


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    """Return when the event is set or the timeout has passed."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


def describe_exit(code: int) -> str:
    """Describe an exit code of asyncio, which is negative for signals."""
    if code == StartupOutage.EXIT_CODE:
        return f"exited with code {code}: what it needs is not available (see its message above)"
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


async def run_until_signalled(
    supervisor: Supervisor,
    on_ready: Callable[[], Awaitable[None]],
    check_settings: Callable[[], None],
) -> None:
    """Run until SIGINT or SIGTERM, or until the terminal is closed. A second signal kills without
    waiting. Without a terminal, SIGHUP makes the services read their settings again, unless
    `check_settings` raises StartupError."""
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            supervisor.kill_now()
        notify_systemd("STOPPING=1")
        stop.set()

    loop = asyncio.get_running_loop()
    ends = (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if has_terminal() else ()))
    for number in ends:
        loop.add_signal_handler(number, on_signal)
    async with reloading_on_hangup(functools.partial(supervisor.reload, check_settings)):
        await supervisor.run(stop, on_ready)


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has exited by itself
        process.send_signal(number)


def _kill_group(leader: int) -> None:
    """Kill the remaining processes of a child's group, such as the engine."""
    # macOS raises PermissionError for a group of zombies.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
