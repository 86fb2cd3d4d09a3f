"""A pool of sandboxed child processes; a child that exceeds its limits is killed and replaced."""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from svc_kit.errors import QueueFull
from svc_kit.sandbox.jobs import FailureKind, Job, JobFailed
from svc_kit.sandbox.process import ChildFailedToStart, SandboxProcess

_log = logging.getLogger(__name__)
_RETRY_AFTER_S = 1.0
_START_PAUSE_S = 0.5
_PROVEN_KEYS = 1024


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """How many children, and for how long.

    Args:
        warm: children kept ready; 0: each is started for who waits, and ends after its jobs.
        most: the most at once.
        jobs_per_child: after so many jobs a child is replaced.
        waiting: the most jobs waiting for a child; more are refused.
        patience_s: how long a job waits before a further child is started.
        preload: modules every child imports before its first job.
    """

    warm: int = 2
    most: int = 4
    jobs_per_child: int = 2000
    waiting: int = 512
    patience_s: float = 0.05
    preload: tuple[str, ...] = ()


@dataclass(eq=False, slots=True)
class _Waiter:
    key: str
    child: asyncio.Future[SandboxProcess]


class SandboxPool:
    """Runs jobs in child processes. Use as an async context manager, in one event loop."""

    def __init__(self, settings: SandboxSettings | None = None) -> None:
        self._settings = settings or SandboxSettings()
        self._idle: list[SandboxProcess] = []
        self._busy: dict[SandboxProcess, str] = {}
        self._starting = 0
        self._proven: set[str] = set()
        self._waiting: deque[_Waiter] = deque()
        self._tasks: set[asyncio.Task[Any]] = set()
        # Those of `_tasks` that end a child: cancelled, they would leave it behind.
        self._closing: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        """Start the warm children; return once the first is ready.

        Raises:
            ChildFailedToStart: none could be started.
        """
        if self._settings.warm:
            self._put_back(await SandboxProcess.start(self._settings.preload))
            self._fill_up()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End every child; what is waiting or running fails."""
        self._closed = True
        self._fail_waiting("the pool of child processes is closed")
        for task in tuple(self._tasks - self._closing):
            task.cancel()
        for child in (*self._idle, *self._busy):
            self._retire(child)
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def num_busy(self) -> int:
        """How many children run a job."""
        return len(self._busy)

    @property
    def num_waiting(self) -> int:
        """How many jobs wait for a child."""
        return len(self._waiting)

    async def run(self, job: Job, payload: Mapping[str, Any], *, key: str = "") -> Any:
        """Run a job in a child and return its result.

        Args:
            key: jobs with the same key share a child's caches and their reputation.

        Raises:
            JobFailed: the job was refused, overran a limit, or its child died.
            QueueFull: too many jobs wait already.
        """
        child = await self._take(key)
        # A job whose caller goes away still ends: killing the child would cost more.
        return await asyncio.shield(self._in_background(self._run_in(child, job, payload)))

    async def _run_in(self, child: SandboxProcess, job: Job, payload: Mapping[str, Any]) -> Any:
        key = self._busy[child]
        try:
            result = await child.run(job, payload)
        except JobFailed as failed:
            if failed.kind is not FailureKind.REFUSED:
                self._proven.discard(key)
            raise
        else:
            self._prove(key)
            return result
        finally:
            del self._busy[child]
            self._put_back(child)

    async def _take(self, key: str) -> SandboxProcess:
        if self._closed:
            raise JobFailed(FailureKind.CRASHED, "the pool of child processes is closed")
        if not self._may_run(key) or not self._idle:
            return await self._wait_for_child(key)
        child = next((idle for idle in self._idle if key in idle.keys), self._idle[-1])
        self._idle.remove(child)
        self._assign(child, key)
        return child

    async def _wait_for_child(self, key: str) -> SandboxProcess:
        if len(self._waiting) >= self._settings.waiting:
            raise QueueFull(
                bound="requests",
                depth=len(self._waiting),
                limit=self._settings.waiting,
                retry_after=_RETRY_AFTER_S,
            )
        waiter = _Waiter(key, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            while not waiter.child.done():
                await asyncio.wait((waiter.child,), timeout=self._settings.patience_s)
                self._grow()
            return waiter.child.result()
        except asyncio.CancelledError:
            self._forget(waiter)
            raise

    def _forget(self, waiter: _Waiter) -> None:
        """Drop a waiter that was cancelled; give back the child it may just have been given."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        elif waiter.child.done() and not waiter.child.cancelled() and not waiter.child.exception():
            child = waiter.child.result()
            del self._busy[child]
            self._put_back(child)

    def _may_run(self, key: str) -> bool:
        if key in self._proven:
            return True
        unproven = sum(other not in self._proven for other in self._busy.values())
        return unproven < max(1, len(self._idle) + len(self._busy) - 1)

    def _prove(self, key: str) -> None:
        if len(self._proven) >= _PROVEN_KEYS:
            self._proven.clear()
        self._proven.add(key)

    def _assign(self, child: SandboxProcess, key: str) -> None:
        child.keys.add(key)
        self._busy[child] = key

    def _put_back(self, child: SandboxProcess) -> None:
        """Hand a child to who waits, keep it, or replace it."""
        worn_out = child.jobs_done >= self._settings.jobs_per_child
        if self._closed or worn_out or not child.usable or self._is_spare():
            self._retire(child)
            self._fill_up()
        else:
            self._idle.append(child)
        self._serve_waiting()

    def _retire(self, child: SandboxProcess) -> None:
        self._closing.add(self._in_background(child.close()))

    def _is_spare(self) -> bool:
        total = len(self._idle) + len(self._busy) + 1
        return total > self._settings.warm and not self._waiting

    def _serve_waiting(self) -> None:
        for waiter in tuple(self._waiting):
            if not self._idle:
                return
            if self._may_run(waiter.key):
                self._waiting.remove(waiter)
                child = self._idle.pop()
                self._assign(child, waiter.key)
                waiter.child.set_result(child)

    def _fill_up(self) -> None:
        while self._size() < self._settings.warm and not self._closed:
            self._start_one()

    def _grow(self) -> None:
        if self._waiting and not self._starting and self._size() < self._settings.most:
            self._start_one()

    def _size(self) -> int:
        return len(self._idle) + len(self._busy) + self._starting

    def _start_one(self) -> None:
        self._starting += 1
        self._in_background(self._start())

    async def _start(self) -> None:
        child = None
        try:
            child = await SandboxProcess.start(self._settings.preload)
        except ChildFailedToStart as problem:
            _log.error("a child process did not start: %s", problem)
            if not self._idle and not self._busy:
                self._fail_waiting("no child process could be started")
            await asyncio.sleep(_START_PAUSE_S)
        finally:
            self._starting -= 1
        if child is not None:
            self._put_back(child)
        self._fill_up()

    def _fail_waiting(self, problem: str) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.child.done():
                waiter.child.set_exception(JobFailed(FailureKind.CRASHED, problem))

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._closing.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have gone; then nothing else retrieves the exception
