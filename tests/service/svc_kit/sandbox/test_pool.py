"""The sandbox pool with real child processes."""

import asyncio
import gc
import os
import sys
import warnings
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from svc_kit.errors import Draining, QueueFull
from svc_kit.logs import project_var
from svc_kit.sandbox.jobs import FailureKind, Job, JobFailed
from svc_kit.sandbox.pool import SandboxPool, SandboxSettings
from svc_kit.sandbox.process import ChildFailedToStart, SandboxProcess
from tests.support.sandbox_jobs import job

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENDLESS = job("spin", deadline_s=25.0)
SMALL = SandboxSettings(min_children=1, max_children=3, grow_after_s=0.02)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[SandboxPool]:
    async with SandboxPool() as running:
        yield running


async def failure(pool: SandboxPool, function: str, **payload: object) -> JobFailed:
    with pytest.raises(JobFailed) as raised:
        await pool.run(job(function, deadline_s=0.3), payload)
    return raised.value


async def wait_until(condition: Callable[[], bool]) -> None:
    """Poll until the condition is true. The timeout of the test limits the wait."""
    while not condition():  # noqa: ASYNC110 (nothing signals what other processes do)
        await asyncio.sleep(0.005)


async def wait_for_queue(pool: SandboxPool, num_waiting: int) -> None:
    """Wait until so many jobs wait for a child."""
    await wait_until(lambda: pool.num_waiting == num_waiting)


async def run_concurrently(pool: SandboxPool, folder: Path, number: int) -> list[int]:
    """Run jobs that end only when `number` jobs are running; return their pids."""
    await pool.run(job("echo"), {}, key="meet")
    together = job("meet", deadline_s=25.0)
    payload = {"folder": str(folder), "number": number}
    pids: list[int] = await asyncio.gather(
        *(pool.run(together, payload, key="meet") for _ in range(number))
    )
    return pids


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_payload_and_result_are_json(pool: SandboxPool) -> None:
    """They are passed unchanged."""
    payload = {"text": "日本 \udcff \x00", "list": [1, 2.5, None, True], "big": 2**70}

    assert await pool.run(job("echo"), payload) == payload


async def test_a_job_can_refuse_its_input(pool: SandboxPool) -> None:
    """With a reason; the child continues to run."""
    before = await pool.run(job("own_pid"), {}, key="k")

    failed = await failure(pool, "refuse", why="line 3 is wrong")

    assert (failed.kind, failed.problem) == (FailureKind.REFUSED, "line 3 is wrong")
    assert await pool.run(job("own_pid"), {}, key="k") == before


async def test_a_job_over_its_deadline_is_killed(pool: SandboxPool) -> None:
    """One that computes all the time."""
    failed = await failure(pool, "spin")

    assert failed.kind is FailureKind.DEADLINE
    assert "longer than 0.3 s" in failed.problem


async def test_memory_is_bounded(pool: SandboxPool) -> None:
    """A job above its limit fails; one below succeeds."""
    small = job("eat_memory", memory_bytes=64 << 20)

    assert await pool.run(small, {"bytes": 16 << 20}) == 16 << 20
    with pytest.raises(JobFailed) as raised:
        await pool.run(small, {"bytes": 1 << 30})
    assert raised.value.kind is FailureKind.MEMORY


async def test_memory_of_imported_libraries_is_not_counted(pool: SandboxPool) -> None:
    """Each job has its own limit."""
    small = {"memory_bytes": 64 << 20}
    large = Job("tests.support.large_job", "mapped_bytes", memory_bytes=64 << 20)
    await pool.run(job("echo", **small), {}, key="large")

    assert await pool.run(large, {}, key="large") == 256 << 20
    with pytest.raises(JobFailed) as raised:
        await pool.run(job("eat_memory", **small), {"bytes": 128 << 20}, key="large")
    assert raised.value.kind is FailureKind.MEMORY


async def test_output_is_bounded(pool: SandboxPool) -> None:
    """A long result is refused by the child."""
    with pytest.raises(JobFailed) as raised:
        await pool.run(job("write_much", output_bytes=1000), {"characters": 2000})

    assert raised.value.kind is FailureKind.OUTPUT


async def test_a_crashed_child_fails_one_job(pool: SandboxPool) -> None:
    """The next job runs in another child."""
    assert (await failure(pool, "die")).kind is FailureKind.CRASHED

    assert await pool.run(job("echo"), {"a": 1}) == {"a": 1}


async def test_an_unexpected_exception_has_no_details(pool: SandboxPool) -> None:
    """Only its class is reported."""
    failed = await failure(pool, "fail")

    assert failed.problem == "it failed (KeyError)"


async def test_endless_recursion_is_refused(pool: SandboxPool) -> None:
    """As an error of the input."""
    assert (await failure(pool, "recurse")).problem == "it is nested too deeply"


async def test_children_do_not_inherit_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Except the search path of native libraries, which imports need."""
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/of-a-gpu/lib")
    async with SandboxPool(SMALL) as pool:
        seen = await pool.run(job("environment"), {})

    assert seen["LD_LIBRARY_PATH"] == "/opt/of-a-gpu/lib"
    assert "HF_TOKEN" not in seen
    assert "secret" not in seen.values()


async def test_children_cannot_write_files_or_start_processes(
    pool: SandboxPool, tmp_path: Path
) -> None:
    """The kernel enforces it, in case code escapes from a template."""
    target = tmp_path / "file"

    refused = await pool.run(job("try_mischief"), {"file": str(target)})

    assert refused == ["descriptors", "fork"] or refused == ["write", "descriptors", "fork"]
    assert not target.exists() or target.read_text() == ""


async def test_slow_jobs_do_not_delay_others() -> None:
    """Children are reserved for jobs of kinds that have succeeded before."""
    async with SandboxPool() as pool:
        await pool.run(job("echo"), {}, key="good")
        slow = [
            asyncio.create_task(pool.run(job("spin", deadline_s=25.0), {}, key=f"bad {number}"))
            for number in range(6)
        ]
        await wait_until(lambda: pool.num_busy == 3)
        for _ in range(20):
            await pool.run(job("echo"), {}, key="good")

        assert not any(task.done() for task in slow)
    await asyncio.gather(*slow, return_exceptions=True)


async def test_a_project_leaves_a_child_free() -> None:
    """Slow jobs of trusted kinds do not delay another project's."""
    async with SandboxPool() as pool:
        await pool.run(job("own_pid"), {}, key="good")
        slow = [asyncio.create_task(run_for("a", pool, ENDLESS, key="good")) for _ in range(6)]
        await wait_until(lambda: pool.num_busy == 4)
        for _ in range(20):
            await asyncio.create_task(run_for("b", pool, job("wait_for"), key="good"))

        assert not any(task.done() for task in slow)
    await asyncio.gather(*slow, return_exceptions=True)


async def test_a_killed_child_is_replaced(pool: SandboxPool, tmp_path: Path) -> None:
    """The concurrency is the same afterwards."""
    await asyncio.gather(failure(pool, "spin"), failure(pool, "spin"))

    assert len(set(await run_concurrently(pool, tmp_path, 2))) == 2


async def test_children_are_replaced_after_a_number_of_jobs() -> None:
    """To limit leaks."""
    settings = SandboxSettings(min_children=1, max_children=1, max_jobs_per_child=3)
    async with SandboxPool(settings) as pool:
        pids = [await pool.run(job("own_pid"), {}) for _ in range(7)]

    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]


async def test_additional_children_are_stopped_when_idle(tmp_path: Path) -> None:
    """More are started under load; the minimum number stays."""
    async with SandboxPool(SMALL) as pool:
        met = await run_concurrently(pool, tmp_path, 2)
        left = {await pool.run(job("own_pid"), {}) for _ in range(6)}

    assert len(set(met)) == 2
    assert len(left) == 1


async def run_for(
    project: str,
    pool: SandboxPool,
    function: Job,
    order: list[str] | None = None,
    key: str = "",
) -> None:
    project_var.set(project)
    await pool.run(function, {"file": "/"}, key=key)
    if order is not None:
        order.append(project)


async def test_too_many_waiting_jobs_are_refused() -> None:
    """One project alone may fill the queue; then another still gets its share."""
    settings = SandboxSettings(min_children=1, max_children=1, max_waiting=4)
    refused: list[tuple[int | None, float | None]] = []
    jobs = []
    async with SandboxPool(settings) as pool:
        for waiting, late, num_waiting in (("aaaaa", "a", 4), ("bb", "b", 6)):
            jobs += [asyncio.create_task(run_for(project, pool, ENDLESS)) for project in waiting]
            await wait_for_queue(pool, num_waiting)
            with pytest.raises(QueueFull) as raised:
                await asyncio.create_task(run_for(late, pool, ENDLESS))
            refused.append((raised.value.share, raised.value.retry_after))
    await asyncio.gather(*jobs, return_exceptions=True)

    assert refused == [(4, 1.0), (2, 1.0)]


async def test_projects_are_served_in_turns() -> None:
    """A project with one job does not wait for all earlier ones of another."""
    order: list[str] = []
    async with SandboxPool(SandboxSettings(min_children=1, max_children=1)) as pool:
        jobs = [
            asyncio.create_task(run_for(project, pool, job("wait_for"), order))
            for project in [*("a" * 20), "b"]
        ]
        await asyncio.gather(*jobs)

    assert order.index("b") <= 2


async def test_a_start_that_is_cancelled_at_once_leaves_no_socket_open() -> None:
    """As when a pool is closed that has just begun to replace a child."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        starting = asyncio.create_task(SandboxProcess.start(()))
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait((starting,))
        del starting
        gc.collect()

    assert [str(each.message) for each in caught] == []


async def test_a_cancelled_caller_returns_its_child_to_the_pool(tmp_path: Path) -> None:
    async with SandboxPool(SandboxSettings(min_children=1, max_children=1)) as pool:
        pid = await pool.run(job("own_pid"), {})
        gate = {"file": str(tmp_path / "go")}
        running = asyncio.create_task(pool.run(job("wait_for", deadline_s=25.0), gate))
        waiting = asyncio.create_task(pool.run(job("echo"), {}))
        await wait_until(lambda: pool.num_busy == pool.num_waiting == 1)
        waiting.cancel()
        running.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        (tmp_path / "go").touch()

        assert await pool.run(job("own_pid"), {}) == pid


async def test_children_that_do_not_start_fail_the_jobs() -> None:
    """Immediately, without a timeout."""
    settings = SandboxSettings(preload=("no_such_module",))

    with pytest.raises(ChildFailedToStart, match="No module named 'no_such_module'"):
        async with SandboxPool(settings):
            raise AssertionError("it cannot have started")


async def test_closing_stops_all_children() -> None:
    async with SandboxPool() as pool:
        idle = await pool.run(job("own_pid"), {})
        busy = asyncio.create_task(pool.run(ENDLESS, {}))
        waiting = [asyncio.create_task(pool.run(job("echo"), {}, key="new")) for _ in range(9)]
        await wait_until(lambda: pool.num_busy > 0 and pool.num_waiting > 0)
    await asyncio.gather(busy, *waiting, return_exceptions=True)

    assert busy.cancelled()
    with pytest.raises(Draining):
        await pool.run(job("echo"), {})
    assert not is_running(idle)


PARENT = """
import asyncio, os
from svc_kit.sandbox.pool import SandboxPool
from tests.support.sandbox_jobs import job

async def main():
    async with SandboxPool() as pool:
        busy = asyncio.create_task(pool.run(job("spin", deadline_s=0.5), {}))
        while not pool.num_busy:
            await asyncio.sleep(0)
        print(*(child.pid for child in (*pool._idle, *pool._busy)), flush=True)
        os._exit(1)

asyncio.run(main())
"""


async def test_children_exit_when_their_parent_is_killed() -> None:
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE, env=environment
    )
    output, _ = await parent.communicate()

    pids = [int(pid) for pid in output.split()]

    assert pids
    await wait_until(lambda: not any(is_running(pid) for pid in pids))
