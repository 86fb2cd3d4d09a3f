"""The supervisor against small real processes: what dies is restarted, what should stop stops."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from corral_cli.up.supervisor import (
    RestartPolicy,
    Service,
    ServiceFailed,
    Supervisor,
    describe_exit,
)

# A child that is ready at once, notes its pid, and notes its name when it is asked to stop.
CHILD = """
import pathlib, signal, sys
name, folder = sys.argv[1], pathlib.Path(sys.argv[2])

def stop(*_):
    with (folder / "stopped").open("a") as file:
        file.write(name + " ")
    sys.exit(0)

signal.signal(signal.SIGTERM, stop)
with (folder / "pids").open("a") as file:
    file.write(str(__import__("os").getpid()) + " ")
while True:
    signal.pause()
"""
STUBBORN = CHILD.replace("sys.exit(0)", "pass")
PARENT = CHILD.replace(
    "while True",
    "import subprocess\n"
    "subprocess.Popen([sys.executable, '-c', sys.argv[3], 'engine', sys.argv[2]])\n"
    "while True",
)
SHORT_LIVED = "import sys; sys.exit(3)"

QUICK = RestartPolicy(first_delay_s=0.01, failures_allowed=2)


def a_service(
    folder: Path, name: str = "inference", script: str = CHILD, stop_patience_s: float = 20
) -> Service:
    """A service whose process runs `script` and is ready once it has noted its pid."""

    async def is_ready() -> bool:
        return bool(pids(folder))

    return Service(
        name=name,
        command=lambda _: [sys.executable, "-c", script, name, str(folder), CHILD],
        is_ready=is_ready,
        stop_patience_s=stop_patience_s,
    )


def pids(folder: Path) -> list[int]:
    """The processes that have run so far, in the order of their starts."""
    file = folder / "pids"
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


def stopped(folder: Path) -> list[str]:
    """The names of those that were asked to stop, in that order."""
    file = folder / "stopped"
    return file.read_text().split() if file.exists() else []


def has_lived(folder: Path, lives: int) -> bool:
    """Whether so many processes have been ready."""
    return len(pids(folder)) == lives


async def until(condition: Callable[[], object]) -> None:
    """Return when another process has made the condition true; the test's timeout bounds it."""
    while not condition():  # noqa: ASYNC110  (no event of ours is set by another process)
        await asyncio.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet counts as ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


async def nothing() -> None:
    """What a test does on ready that has nothing to do."""


async def run_until(supervisor: Supervisor, script: Callable[[], Awaitable[None]]) -> None:
    """Run the supervisor, do `script` once everything is ready, then stop."""
    stop, ready = asyncio.Event(), asyncio.Event()

    async def on_ready() -> None:
        ready.set()

    running = asyncio.create_task(supervisor.run(stop, on_ready))
    await ready.wait()
    await script()
    stop.set()
    await running


async def test_a_service_that_dies_is_started_again(tmp_path: Path) -> None:
    """A killed service comes back as a new process, and both events are reported."""
    reports: list[str] = []

    async def kill_it() -> None:
        os.kill(pids(tmp_path)[0], signal.SIGKILL)
        await until(lambda: len(pids(tmp_path)) == 2 and len(reports) == 2)

    await run_until(Supervisor([a_service(tmp_path)], reports.append, QUICK), kill_it)

    assert reports == [
        "inference was killed by SIGKILL; starting it again in 0.01 s",
        "inference is back",
        "stopping inference",
    ]
    assert all(is_gone(pid) for pid in pids(tmp_path))


async def test_services_stop_in_the_reverse_order_of_their_start(tmp_path: Path) -> None:
    """The one that was started last stops first, so that nobody talks to a service that left."""
    services = [a_service(tmp_path, name) for name in ("inference", "gateway")]

    async def both_run() -> None:
        await until(lambda: len(pids(tmp_path)) == 2)

    await run_until(Supervisor(services, lambda _: None), both_run)

    assert stopped(tmp_path) == ["gateway", "inference"]


async def test_a_service_that_never_gets_ready_fails_at_once(tmp_path: Path) -> None:
    """A first start that ends is a mistake in the settings: no second try, and the rest stops."""
    waiting = asyncio.Event()

    async def is_ready() -> bool:
        await waiting.wait()
        return False

    bad = Service("gateway", lambda _: [sys.executable, "-c", SHORT_LIVED], is_ready)
    supervisor = Supervisor([a_service(tmp_path), bad], lambda _: None)

    with pytest.raises(ServiceFailed, match="gateway could not start: it exited with code 3"):
        await supervisor.run(asyncio.Event(), nothing)
    assert all(is_gone(pid) for pid in pids(tmp_path))


async def test_short_lives_in_a_row_are_given_up(tmp_path: Path) -> None:
    """After the allowed number of failures the supervisor ends with one clear line."""
    reports: list[str] = []
    script = CHILD.replace("while True", "sys.exit(7)\nwhile True")
    (tmp_path / "pids").write_text("1 ")  # ready from the first moment
    supervisor = Supervisor([a_service(tmp_path, script=script)], reports.append, QUICK)

    with pytest.raises(ServiceFailed, match="exited with code 7 3 times in a row"):
        await supervisor.run(asyncio.Event(), nothing)
    assert [line for line in reports if "again" in line] == [
        "inference exited with code 7; starting it again in 0.01 s",
        "inference exited with code 7; starting it again in 0.02 s",
    ]


async def test_what_is_not_vital_is_tried_until_it_starts(tmp_path: Path) -> None:
    """The rest is announced and goes on, however often the start fails, and hears of its end."""
    reports: list[str] = []
    vital = a_service(tmp_path)
    cured = tmp_path / "cured"
    script = f"import pathlib\nif not pathlib.Path({str(cured)!r}).exists(): raise SystemExit(3)\n"
    control_folder = tmp_path / "control"
    control_folder.mkdir()
    control = replace(a_service(control_folder, "control", script=script + CHILD), is_vital=False)

    async def cure_it() -> None:
        await until(lambda: len(reports) > QUICK.failures_allowed + 1)
        cured.touch()
        await until(lambda: "control is back" in reports)

    await run_until(Supervisor([vital, control], reports.append, QUICK), cure_it)

    assert reports[0] == (
        "control exited with code 3; starting it again in 0.01 s (the rest goes on without it)"
    )
    assert len(pids(tmp_path)) == 1


async def test_a_long_life_clears_the_count_of_failures(tmp_path: Path) -> None:
    """A service that dies now and then is never given up."""
    forgiving = RestartPolicy(first_delay_s=0.01, stable_after_s=0, failures_allowed=1)

    async def kill_it_often() -> None:
        for lives in range(1, 5):
            await until(partial(has_lived, tmp_path, lives))
            os.kill(pids(tmp_path)[-1], signal.SIGKILL)
        await until(lambda: len(pids(tmp_path)) == 5)

    await run_until(Supervisor([a_service(tmp_path)], lambda _: None, forgiving), kill_it_often)

    assert len(pids(tmp_path)) == 5


async def test_stopping_does_not_wait_for_a_restart(tmp_path: Path) -> None:
    """A stop while a service is waiting for its next try ends at once, with nothing started."""
    reports: list[str] = []
    slow = RestartPolicy(first_delay_s=1000, longest_delay_s=1000)

    async def kill_it() -> None:
        os.kill(pids(tmp_path)[0], signal.SIGKILL)
        await until(lambda: reports)

    await run_until(Supervisor([a_service(tmp_path)], reports.append, slow), kill_it)

    assert len(pids(tmp_path)) == 1


async def test_a_service_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """Patience ends: SIGKILL follows, and the operator is told."""
    reports: list[str] = []
    service = a_service(tmp_path, script=STUBBORN, stop_patience_s=0.2)

    await run_until(Supervisor([service], reports.append), nothing)

    assert reports == ["stopping inference", "inference did not stop; killing it"]
    assert is_gone(pids(tmp_path)[0])


async def test_hurry_ends_the_patience(tmp_path: Path) -> None:
    """A second Ctrl-C kills what would have been waited for."""
    supervisor = Supervisor([a_service(tmp_path, script=STUBBORN)], lambda _: None)
    stop = asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop, nothing))
    await until(lambda: pids(tmp_path))

    stop.set()
    await until(lambda: stopped(tmp_path))
    supervisor.hurry()
    await running

    assert is_gone(pids(tmp_path)[0])


async def test_what_a_dead_service_leaves_behind_goes_too(tmp_path: Path) -> None:
    """The processes that a service started, the engine above all, do not outlive it."""
    supervisor = Supervisor([a_service(tmp_path, script=PARENT)], lambda _: None, QUICK)

    async def kill_the_parent() -> None:
        await until(lambda: len(pids(tmp_path)) == 2)
        os.kill(pids(tmp_path)[0], signal.SIGKILL)
        await until(lambda: is_gone(pids(tmp_path)[1]))

    await run_until(supervisor, kill_the_parent)

    assert all(is_gone(pid) for pid in pids(tmp_path)[:2])


def a_supervisor_program(folder: Path) -> "subprocess.Popen[bytes]":
    """A supervisor in a process of its own, with two services that follow its lifeline."""
    child = "from corral_cli.up.parent_watch import exit_with_parent\n" + CHILD.replace(
        "while True", "exit_with_parent(int(sys.argv[3]), 0.2)\nwhile True"
    )
    program = f"""
import asyncio, pathlib, sys
from corral_cli.up.supervisor import Service, Supervisor, run_until_signalled

async def is_ready():
    return True

async def nothing():
    pass

def service(name):
    command = [sys.executable, "-c", {child!r}, name, {str(folder)!r}]
    return Service(name, lambda fd: [*command, str(fd)], is_ready)

services = [service("inference"), service("gateway")]
asyncio.run(run_until_signalled(Supervisor(services, print), nothing))
"""
    return subprocess.Popen([sys.executable, "-c", program])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_stops_everything_in_order(tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM, Ctrl-C and a closed terminal: gateway first, exit code 0, no process left."""
    program = a_supervisor_program(tmp_path)
    await until(lambda: len(pids(tmp_path)) == 2)

    program.send_signal(number)

    assert await asyncio.to_thread(program.wait) == 0
    assert stopped(tmp_path) == ["gateway", "inference"]
    assert all(is_gone(pid) for pid in pids(tmp_path))


async def test_children_go_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    """SIGKILL leaves the supervisor no word to say; its children end all the same."""
    program = a_supervisor_program(tmp_path)
    await until(lambda: len(pids(tmp_path)) == 2)

    program.kill()
    await asyncio.to_thread(program.wait)

    await until(lambda: all(is_gone(pid) for pid in pids(tmp_path)))
    assert sorted(stopped(tmp_path)) == ["gateway", "inference"]


async def test_a_child_that_ignores_the_end_of_its_supervisor_is_killed(tmp_path: Path) -> None:
    """The lifeline's second signal cannot be ignored."""
    script = "from corral_cli.up.parent_watch import exit_with_parent\n" + STUBBORN.replace(
        "while True", "exit_with_parent(int(sys.argv[3]), 0.1)\nwhile True"
    )
    read_end, write_end = os.pipe()
    command = [sys.executable, "-c", script, "inference", str(tmp_path), str(read_end)]
    child = await asyncio.create_subprocess_exec(
        *command, pass_fds=[read_end], start_new_session=True
    )
    os.close(read_end)
    await until(lambda: pids(tmp_path))

    os.close(write_end)

    assert await child.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited with code 0"),
        (2, "exited with code 2"),
        (-signal.SIGABRT, "was killed by SIGABRT"),
        (-99, "was killed by signal 99"),
    ],
)
def test_exits_are_told_in_words(code: int, words: str) -> None:
    """An operator reads the name of a signal, not a negative number."""
    assert describe_exit(code) == words


def test_delays_double_up_to_a_limit() -> None:
    """The first try comes soon, the later ones ever later, none later than the limit."""
    policy = RestartPolicy(first_delay_s=0.5, longest_delay_s=3)

    assert [policy.delay_s(failures) for failures in (1, 2, 3, 4, 5000)] == [0.5, 1, 2, 3, 3]
