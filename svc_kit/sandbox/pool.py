"""A pool of sandboxed child processes, which are replaced after a failed job.

Jobs have keys, such as a chat template. A key whose last job succeeded is trusted. So that slow
input cannot block all children, the jobs of one project leave one child free for the others, and
jobs of keys that are not trusted leave another one. Projects that wait for a child are served in
turns, by the time that their jobs took.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from svc_kit.errors import DomainError, Draining, UpstreamUnavailable
from svc_kit.fairness import FairTurns
from svc_kit.logs import project_var
from svc_kit.queue_share import QueueEntry, check_queue
from svc_kit.sandbox.jobs import SANDBOX, FailureKind, Job, JobFailed
from svc_kit.sandbox.process import ChildFailedToStart, SandboxProcess

_log = logging.getLogger(__name__)
_RETRY_AFTER_S = 1.0
_START_PAUSE_S = 0.5
_MAX_TRUSTED_KEYS = 1024


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """Size of the pool and lifetime of its children.

    Args:
        min_children: children that are always kept; with 0 they are started on demand.
        max_children: maximum number of children.
        max_jobs_per_child: number of jobs after which a child is replaced.
        max_waiting: maximum number of jobs waiting for a child (`queue_share`).
        grow_after_s: time that a job waits before another child is started.
        preload: modules that every child imports before its first job.
    """

    min_children: int = 2
    max_children: int = 5
    max_jobs_per_child: int = 2000
    max_waiting: int = 512
    grow_after_s: float = 0.05
    preload: tuple[str, ...] = ()


class _Owner(NamedTuple):
    key: str
    project: str


@dataclass(eq=False, slots=True)
class _Waiter:
    owner: _Owner
    child: asyncio.Future[SandboxProcess]


class SandboxPool:
    """Runs jobs in child processes. Use as an async context manager, in one event loop. `start`
    starts a child that imports these modules, or raises ChildFailedToStart."""

    def __init__(
        self,
        settings: SandboxSettings | None = None,
        start: Callable[[tuple[str, ...]], Awaitable[SandboxProcess]] = SandboxProcess.start,
    ) -> None:
        self._settings = settings or SandboxSettings()
        self._start_child = start
        self._idle: list[SandboxProcess] = []
        self._busy: dict[SandboxProcess, _Owner] = {}
        self._starting = 0
        self._trusted: set[str] = set()
        self._waiting: deque[_Waiter] = deque()
        self._turns: FairTurns[str] = FairTurns()
        self._tasks: set[asyncio.Task[Any]] = set()
        # The subset of `_tasks` that close a child; they must not be cancelled.
        self._closing: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        """Start the minimum of children and wait for the first. Raises ChildFailedToStart."""
        if self._settings.min_children:
            self._release(await self._start_child(self._settings.preload))
            self._start_missing()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Kill all children; waiting and running jobs fail."""
        self._closed = True
        self._fail_waiting(Draining())
        for task in tuple(self._tasks - self._closing):
            task.cancel()
        for child in (*self._idle, *self._busy):
            self._close_child(child)
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def num_busy(self) -> int:
        """Number of children that run a job."""
        return len(self._busy)

    @property
    def num_waiting(self) -> int:
        """Number of jobs that wait for a child."""
        return len(self._waiting)

    async def run(self, job: Job, payload: Mapping[str, Any], *, key: str = "") -> Any:
        """Run a job in a child and return its result.

        Jobs with the same `key` prefer the same child, for its caches, and share their trust.

        Raises:
            JobFailed: the job was refused or exceeded a limit, or made its child die.
            QueueFull: too many jobs are waiting.
            Draining: the pool is closed.
            UpstreamUnavailable: no child can be started, or the job was stopped by something else
                than its input, such as a lack of processors, memory or files. It may be retried.
        """
        child = await self._acquire(_Owner(key, project_var.get()))
        # The job continues if the caller is cancelled: killing the child would cost more.
        return await asyncio.shield(self._in_background(self._run_in(child, job, payload)))

    async def _run_in(self, child: SandboxProcess, job: Job, payload: Mapping[str, Any]) -> Any:
        owner, started = self._busy[child], time.monotonic()
        try:
            result = await child.run(job, payload)
        except JobFailed as failed:
            if failed.kind is FailureKind.UNAVAILABLE:
                _log.warning("a job of %s could not run: %s", job.module, failed.problem)
                raise _unavailable() from None
            if failed.kind is not FailureKind.REFUSED:
                self._trusted.discard(owner.key)
            raise
        else:
            self._trust(owner.key)
            return result
        finally:
            self._turns.charge(owner.project, time.monotonic() - started)
            del self._busy[child]
            self._release(child)

    async def _acquire(self, owner: _Owner) -> SandboxProcess:
        if self._closed:
            raise Draining
        if not self._may_run(owner) or not self._idle:
            return await self._wait_for_child(owner)
        child = next((idle for idle in self._idle if owner.key in idle.keys), self._idle[-1])
        self._idle.remove(child)
        self._assign(child, owner)
        return child

    async def _wait_for_child(self, owner: _Owner) -> SandboxProcess:
        self._check_queue(owner.project)
        waiter = _Waiter(owner, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            while not waiter.child.done():
                await asyncio.wait((waiter.child,), timeout=self._settings.grow_after_s)
                self._grow()
            return waiter.child.result()
        except asyncio.CancelledError:
            self._remove_waiter(waiter)
            raise

    def _check_queue(self, project: str) -> None:
        """Raise QueueFull if too many jobs wait, and more than the project's share."""
        check_queue(
            "requests",
            self._settings.max_waiting,
            (QueueEntry(waiter.owner.project) for waiter in self._waiting),
            QueueEntry(project),
            depth=len(self._waiting) + 1,
            retry_after=_RETRY_AFTER_S,
        )

    def _remove_waiter(self, waiter: _Waiter) -> None:
        """Remove a cancelled waiter, and release a child that was just assigned to it."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        elif waiter.child.done() and not waiter.child.cancelled() and not waiter.child.exception():
            child = waiter.child.result()
            del self._busy[child]
            self._release(child)

    def _may_run(self, owner: _Owner) -> bool:
        num_children, busy = len(self._idle) + len(self._busy), self._busy.values()
        of_project = sum(other.project == owner.project for other in busy)
        if of_project >= max(1, self._settings.max_children - 1):
            return False
        if owner.key in self._trusted:
            return True
        return sum(other.key not in self._trusted for other in busy) < max(1, num_children - 2)

    def _trust(self, key: str) -> None:
        if len(self._trusted) >= _MAX_TRUSTED_KEYS:
            self._trusted.clear()
        self._trusted.add(key)

    def _assign(self, child: SandboxProcess, owner: _Owner) -> None:
        child.keys.add(owner.key)
        self._busy[child] = owner

    def _release(self, child: SandboxProcess) -> None:
        """Keep a child for waiting or later jobs, or replace it."""
        is_used_up = child.jobs_done >= self._settings.max_jobs_per_child
        if self._closed or is_used_up or not child.usable or self._is_spare():
            self._close_child(child)
            self._start_missing()
        else:
            self._idle.append(child)
        self._assign_waiting()

    def _close_child(self, child: SandboxProcess) -> None:
        self._closing.add(self._in_background(child.close()))

    def _is_spare(self) -> bool:
        total = len(self._idle) + len(self._busy) + 1
        return total > self._settings.min_children and not self._waiting

    def _assign_waiting(self) -> None:
        while self._idle:
            next_of = {
                waiter.owner.project: waiter
                for waiter in reversed(self._waiting)
                if self._may_run(waiter.owner)
            }
            if not next_of:
                return
            waiter = next_of[self._turns.next(next_of)]
            self._waiting.remove(waiter)
            child = self._idle.pop()
            self._assign(child, waiter.owner)
            waiter.child.set_result(child)

    def _start_missing(self) -> None:
        while self._size() < self._settings.min_children and not self._closed:
            self._start_one()

    def _grow(self) -> None:
        if self._waiting and not self._starting and self._size() < self._settings.max_children:
            self._start_one()

    def _size(self) -> int:
        return len(self._idle) + len(self._busy) + self._starting

    def _start_one(self) -> None:
        self._starting += 1
        self._in_background(self._start())

    async def _start(self) -> None:
        child = None
        try:
            child = await self._start_child(self._settings.preload)
        except ChildFailedToStart as problem:
            _log.error("a sandboxed child process failed to start: %s", problem)
            if not self._idle and not self._busy:
                self._fail_waiting(_unavailable())
            await asyncio.sleep(_START_PAUSE_S)
        finally:
            self._starting -= 1
        if child is not None:
            self._release(child)
        self._start_missing()

    def _fail_waiting(self, error: DomainError) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.child.done():
                waiter.child.set_exception(error)

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._closing.discard(task)
        if not task.cancelled():
            task.exception()  # nothing else retrieves it if the caller was cancelled


def _unavailable() -> UpstreamUnavailable:
    return UpstreamUnavailable(service=SANDBOX, retry_after=_RETRY_AFTER_S)
