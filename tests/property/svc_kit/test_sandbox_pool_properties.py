"""The sandbox pool with several projects: what one may hold, and what none waits for.

Children are no processes here: their jobs end when the test says so.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from svc_kit.logs import project_var
from svc_kit.sandbox.jobs import FailureKind, Job, JobFailed
from svc_kit.sandbox.pool import SandboxPool, SandboxSettings
from svc_kit.sandbox.process import SandboxProcess
from tests.support.examples import examples
from tests.support.sandbox_jobs import job

PROJECTS, KEYS = "abc", ("", "k1", "k2")
TURNS_OF_LOOP = 40
"""More than any step of the pool needs."""


class Owner(NamedTuple):
    key: str
    project: str


class Child(SandboxProcess):
    """A child whose jobs end when `result` is set."""

    def __init__(self, bench: "Bench") -> None:
        self._bench = bench
        self.usable, self.jobs_done, self.keys = True, 0, set()

    async def run(self, job: Job, payload: Mapping[str, Any]) -> Any:
        self.jobs_done += 1
        self.result = asyncio.get_running_loop().create_future()
        self._bench.begin(self, payload["number"])
        try:
            return await self.result
        finally:
            del self._bench.running[self]

    async def close(self) -> None:
        """Nothing is left of it."""


class Bench:
    """A pool of these sizes, and what is known of its jobs without it."""

    def __init__(self, smallest: int, largest: int, jobs_per_child: int) -> None:
        self.running: dict[Child, int] = {}
        """The numbers of jobs by their children."""
        self.owners: list[Owner] = []
        self.callers: dict[int, asyncio.Task[Any]] = {}
        self.trusted: set[str] = set()
        self.largest = largest
        sizes = SandboxSettings(smallest, largest, jobs_per_child, grow_after_s=0.0)
        self.pool = SandboxPool(sizes, self._start)

    async def _start(self, _: tuple[str, ...]) -> SandboxProcess:
        return Child(self)

    def begin(self, child: Child, number: int) -> None:
        """Note that a job runs; jobs of new keys do not take all children but one."""
        self.running[child] = number
        if self.owners[number].key not in self.trusted:
            assert self.num_new <= max(1, self.largest - 2)

    @property
    def num_new(self) -> int:
        return sum(self.owners[number].key not in self.trusted for number in self.running.values())

    def submit(self, owner: Owner) -> None:
        number = len(self.owners)

        async def run() -> None:
            project_var.set(owner.project)
            await self.pool.run(job("echo"), {"number": number}, key=owner.key)

        self.owners.append(owner)
        self.callers[number] = asyncio.create_task(run())

    def finish(self, number: int, kind: FailureKind | None) -> None:
        """End one of the running jobs, with or without success."""
        if not self.running:
            return
        child = list(self.running)[number % len(self.running)]
        owner = self.owners[self.running[child]]
        if kind is None:
            child.result.add_done_callback(lambda _: self.trusted.add(owner.key))
            child.result.set_result(None)
            return
        if kind is not FailureKind.REFUSED:
            child.result.add_done_callback(lambda _: self.trusted.discard(owner.key))
            child.usable = False
        child.result.set_exception(JobFailed(kind, "it did"))

    def cancel(self, number: int) -> None:
        """Give up one of the jobs, which goes on if it is running."""
        if self.callers:
            list(self.callers.values())[number % len(self.callers)].cancel()

    async def settle(self) -> None:
        """Let the pool do all that it can."""
        for _ in range(TURNS_OF_LOOP):
            await asyncio.sleep(0)
        for number, caller in [*self.callers.items()]:
            if caller.done():
                assert caller.cancelled() or isinstance(caller.exception(), JobFailed | None)
                del self.callers[number]

    def check(self) -> None:
        """No project holds all children, and nobody waits for what is free."""
        busy = [self.owners[number] for number in self.running.values()]
        of_project = Counter(owner.project for owner in busy)
        most = max(1, self.largest - 1)
        assert self.pool.num_busy == len(busy) <= self.largest
        assert max(of_project.values(), default=0) <= most
        waiting = self.callers.keys() - {*self.running.values()}
        assert self.pool.num_waiting == len(waiting)
        for owner in (self.owners[number] for number in waiting):
            is_new = owner.key not in self.trusted
            assert (
                len(busy) == self.largest
                or of_project[owner.project] == most
                or (is_new and self.num_new >= max(1, self.largest - 2))
            )


OWNERS = st.builds(Owner, st.sampled_from(KEYS), st.sampled_from(PROJECTS))
NUMBERS = st.integers(0, 20)
ENDS = st.sampled_from([None, None, None, FailureKind.REFUSED, FailureKind.CRASHED])
STEPS = st.lists(
    st.tuples(st.just("submit"), OWNERS, st.integers(1, 6))
    | st.tuples(st.just("finish"), NUMBERS, ENDS)
    | st.tuples(st.just("cancel"), NUMBERS, st.none()),
    max_size=30,
)


@settings(max_examples=examples(60), deadline=None)
@given(steps=STEPS, largest=st.integers(1, 6), data=st.data())
def test_a_project_leaves_a_child_and_new_keys_another(
    steps: list[tuple[str, Any, Any]], largest: int, data: st.DataObject
) -> None:
    """Whatever is run, ends, fails and is given up, for each size of the pool."""
    smallest = data.draw(st.integers(0, largest))
    asyncio.run(try_steps(steps, Bench(smallest, largest, data.draw(st.integers(1, 4)))))


async def try_steps(steps: list[tuple[str, Any, Any]], bench: Bench) -> None:
    """Take the steps; the pool is checked after each."""
    async with bench.pool:
        for kind, first, second in steps:
            if kind == "submit":
                for _ in range(second):
                    bench.submit(first)
            elif kind == "finish":
                bench.finish(first, second)
            else:
                bench.cancel(first)
            await bench.settle()
            bench.check()
        while bench.callers:
            bench.finish(0, None)
            await bench.settle()
            bench.check()
    assert bench.pool.num_waiting == 0
