"""The supervisor with small real processes: restarts, and stopping in order."""

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

# A child that writes its pid to a file, and its name when it receives SIGTERM or SIGHUP.
CHILD = """
import pathlib, signal, sys
name, folder = sys.argv[1], pathlib.Path(sys.argv[2])

def stop(*_):
    with (folder / "stopped").open("a") as file:
        file.write(name + " ")
    sys.exit(0)

def reload(*_):
    with (folder / "reloaded").open("a") as file:
        file.write(name + " ")

signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGHUP, reload)
with (folder / "pids").open("a") as file:
    file.write(str(__import__("os").getpid()) + " ")
while True:
    signal.pause()
"""
IGNORES_SIGTERM = CHILD.replace("sys.exit(0)", "pass")
PARENT = CHILD.replace(
    "while True",
    "import subprocess\n"
    "subprocess.Popen([sys.executable, '-c', sys.argv[3], 'engine', sys.argv[2]])\n"
    "while True",
)
SHORT_LIVED = "import sys; sys.exit(3)"

FAST_RESTARTS = RestartPolicy(first_delay_s=0.01, failures_allowed=2)


def make_service(
    folder: Path, name: str = "inference", script: str = CHILD, stop_timeout_s: float = 20
) -> Service:
    """Return a service that runs `script` and is ready when it has written its pid."""

    async def is_ready() -> bool:
        return bool(pids(folder))

    return Service(
        name=name,
        command=lambda _: [sys.executable, "-c", script, name, str(folder), CHILD],
        is_ready=is_ready,
        stop_timeout_s=stop_timeout_s,
    )


def pids(folder: Path) -> list[int]:
    """The pids of all processes so far, in start order."""
    file = folder / "pids"
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


def stopped(folder: Path) -> list[str]:
    """The names of services that received SIGTERM, in order."""
    file = folder / "stopped"
    return file.read_text().split() if file.exists() else []


def has_started(folder: Path, count: int) -> bool:
    return len(pids(folder)) == count


async def wait_until(condition: Callable[[], object]) -> None:
    """Poll until the condition is true. The timeout of the test limits the wait."""
    while not condition():  # noqa: ASYNC110  (another process cannot set an asyncio event)
        await asyncio.sleep(0.01)


def has_exited(pid: int) -> bool:
    """Whether a process has exited. Zombies count as exited."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


async def do_nothing() -> None:
    """Callback without effect."""


async def run_until(supervisor: Supervisor, script: Callable[[], Awaitable[None]]) -> None:
    stop, ready = asyncio.Event(), asyncio.Event()

    async def on_ready() -> None:
        ready.set()

    running = asyncio.create_task(supervisor.run(stop, on_ready))
    await ready.wait()
    await script()
    stop.set()
    await running


async def test_a_killed_service_is_restarted(tmp_path: Path) -> None:
    reports: list[str] = []

    async def kill() -> None:
        os.kill(pids(tmp_path)[0], signal.SIGKILL)
        await wait_until(lambda: len(pids(tmp_path)) == 2 and len(reports) == 2)

    await run_until(Supervisor([make_service(tmp_path)], reports.append, FAST_RESTARTS), kill)

    assert reports == [
        "inference was killed by SIGKILL; restarting it in 0.01 s",
        "inference is back",
        "stopping inference",
    ]
    assert all(has_exited(pid) for pid in pids(tmp_path))


async def test_services_stop_in_the_reverse_order_of_their_start(tmp_path: Path) -> None:
    """The last one stops first, so that no service calls a stopped one."""
    services = [make_service(tmp_path, name) for name in ("inference", "gateway")]

    async def both_run() -> None:
        await wait_until(lambda: len(pids(tmp_path)) == 2)

    await run_until(Supervisor(services, lambda _: None), both_run)

    assert stopped(tmp_path) == ["gateway", "inference"]


async def test_too_many_failures_in_a_row_stop_the_supervisor(tmp_path: Path) -> None:
    reports: list[str] = []
    script = CHILD.replace("while True", "sys.exit(7)\nwhile True")
    (tmp_path / "pids").write_text("1 ")  # ready immediately
    supervisor = Supervisor([make_service(tmp_path, script=script)], reports.append, FAST_RESTARTS)

    with pytest.raises(ServiceFailed, match="exited with code 7 3 times in a row"):
        await supervisor.run(asyncio.Event(), do_nothing)
    assert [line for line in reports if "restarting" in line] == [
        "inference exited with code 7; restarting it in 0.01 s",
        "inference exited with code 7; restarting it in 0.02 s",
    ]


async def test_a_service_that_is_not_vital_is_restarted_without_limit(tmp_path: Path) -> None:
    """`on_ready` runs without it, and the other services continue: its database is away."""
    reports: list[str] = []
    vital = make_service(tmp_path)
    fixed = tmp_path / "fixed"
    script = f"import pathlib\nif not pathlib.Path({str(fixed)!r}).exists(): raise SystemExit(75)\n"
    control_folder = tmp_path / "control"
    control_folder.mkdir()
    control = replace(
        make_service(control_folder, "control", script=script + CHILD), is_vital=False
    )

    supervisor = Supervisor([vital, control], reports.append, FAST_RESTARTS)

    async def fix() -> None:
        assert supervisor.away.keys() == {"control"}
        assert "what it needs is not available" in supervisor.away["control"]
        await wait_until(lambda: len(reports) > FAST_RESTARTS.failures_allowed + 1)
        fixed.touch()
        await wait_until(lambda: "control is back" in reports)

    await run_until(supervisor, fix)

    assert reports[0] == (
        "control exited with code 75: what it needs is not available (see its message above);"
        " restarting it in 0.01 s (the other services continue without it)"
    )
    assert supervisor.away == {}
    assert len(pids(tmp_path)) == 1


@pytest.mark.parametrize("is_vital", [True, False])
async def test_a_service_whose_settings_cannot_work_stops_the_start(
    tmp_path: Path, is_vital: bool
) -> None:
    """Also one without which the others could continue: it would never start."""
    bad = replace(make_service(tmp_path / "none", "control", script=SHORT_LIVED), is_vital=is_vital)
    supervisor = Supervisor([make_service(tmp_path), bad], lambda _: None, FAST_RESTARTS)

    with pytest.raises(ServiceFailed, match="control could not start: it exited with code 3"):
        await supervisor.run(asyncio.Event(), do_nothing)
    assert all(has_exited(pid) for pid in pids(tmp_path))


async def test_a_long_run_resets_the_count_of_failures(tmp_path: Path) -> None:
    """A service that fails occasionally is always restarted."""
    policy = RestartPolicy(first_delay_s=0.01, stable_after_s=0, failures_allowed=1)

    async def kill_repeatedly() -> None:
        for count in range(1, 5):
            await wait_until(partial(has_started, tmp_path, count))
            os.kill(pids(tmp_path)[-1], signal.SIGKILL)
        await wait_until(lambda: len(pids(tmp_path)) == 5)

    await run_until(Supervisor([make_service(tmp_path)], lambda _: None, policy), kill_repeatedly)

    assert len(pids(tmp_path)) == 5


async def test_stopping_does_not_wait_for_a_restart(tmp_path: Path) -> None:
    """The supervisor returns immediately, and starts no process."""
    reports: list[str] = []
    slow = RestartPolicy(first_delay_s=1000, longest_delay_s=1000)

    async def kill() -> None:
        os.kill(pids(tmp_path)[0], signal.SIGKILL)
        await wait_until(lambda: reports)

    await run_until(Supervisor([make_service(tmp_path)], reports.append, slow), kill)

    assert len(pids(tmp_path)) == 1


async def test_a_service_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """SIGKILL follows after the timeout, and is reported."""
    reports: list[str] = []
    service = make_service(tmp_path, script=IGNORES_SIGTERM, stop_timeout_s=0.2)

    await run_until(Supervisor([service], reports.append), do_nothing)

    assert reports == ["stopping inference", "inference did not stop; killing it"]
    assert has_exited(pids(tmp_path)[0])


async def test_the_wait_for_a_stopping_service_is_explained(tmp_path: Path) -> None:
    """With what it still runs, the time that is left, and how to end it."""
    reports: list[str] = []

    async def count_running() -> int:
        return 3

    service = replace(
        make_service(tmp_path, script=IGNORES_SIGTERM, stop_timeout_s=30),
        count_running=count_running,
    )
    supervisor = Supervisor([service], reports.append)
    stop = asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop, do_nothing))
    await wait_until(lambda: pids(tmp_path))

    stop.set()
    await wait_until(lambda: len(reports) == 2)
    supervisor.kill_now()
    await running

    assert reports[1] == (
        "waiting for inference: 3 running requests or jobs;"
        " it is killed in 29 s, or by another Ctrl-C"
    )


async def test_kill_now_ends_the_wait_for_a_stopping_service(tmp_path: Path) -> None:
    """It is called on a second Ctrl-C."""
    supervisor = Supervisor([make_service(tmp_path, script=IGNORES_SIGTERM)], lambda _: None)
    stop = asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop, do_nothing))
    await wait_until(lambda: pids(tmp_path))

    stop.set()
    await wait_until(lambda: stopped(tmp_path))
    supervisor.kill_now()
    await running

    assert has_exited(pids(tmp_path)[0])


async def test_child_processes_of_a_dead_service_are_killed(tmp_path: Path) -> None:
    """Such as the engine."""
    supervisor = Supervisor([make_service(tmp_path, script=PARENT)], lambda _: None, FAST_RESTARTS)

    async def kill_the_parent() -> None:
        await wait_until(lambda: len(pids(tmp_path)) == 2)
        os.kill(pids(tmp_path)[0], signal.SIGKILL)
        await wait_until(lambda: has_exited(pids(tmp_path)[1]))

    await run_until(supervisor, kill_the_parent)

    assert all(has_exited(pid) for pid in pids(tmp_path)[:2])


def start_supervisor(folder: Path, terminal: int | None = None) -> "subprocess.Popen[bytes]":
    """Start a supervisor process with two services that watch its lifeline, in a session of its
    own: without a terminal, or with the one of a file descriptor."""
    child = "from corral_cli.up.parent_watch import exit_with_parent\n" + CHILD.replace(
        "while True", "exit_with_parent(int(sys.argv[3]), 0.2)\nwhile True"
    )
    program = f"""
import asyncio, fcntl, pathlib, sys, termios
if {terminal is not None}:
    fcntl.ioctl({terminal}, termios.TIOCSCTTY, 0)
from corral_cli.up.supervisor import Service, Supervisor, run_until_signalled
from svc_kit.lifecycle import StartupError

folder = pathlib.Path({str(folder)!r})

def check_settings():
    if (folder / "mistake").exists():
        raise StartupError("2 problems:\\n  - max_requests")

def report(text):
    with (folder / "reports").open("a") as file:
        print(text, file=file)

async def is_ready():
    return True

async def nothing():
    pass

def service(name):
    command = [sys.executable, "-c", {child!r}, name, {str(folder)!r}]
    return Service(name, lambda fd: [*command, str(fd)], is_ready)

services = [service("inference"), service("gateway")]
asyncio.run(run_until_signalled(Supervisor(services, report), nothing, check_settings))
"""
    return subprocess.Popen(
        [sys.executable, "-c", program],
        start_new_session=True,
        pass_fds=[] if terminal is None else [terminal],
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_stops_everything_in_order(tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM, Ctrl-C and a closed terminal: the gateway first, with exit code 0."""
    terminal = os.openpty()
    program = start_supervisor(tmp_path, terminal[1])
    await wait_until(lambda: len(pids(tmp_path)) == 2)

    program.send_signal(number)

    assert await asyncio.to_thread(program.wait) == 0
    assert stopped(tmp_path) == ["gateway", "inference"]
    assert all(has_exited(pid) for pid in pids(tmp_path))
    for end in terminal:
        os.close(end)


async def test_without_a_terminal_sighup_is_passed_to_the_services(tmp_path: Path) -> None:
    """To those that are ready: they read their settings again, and go on."""
    program = start_supervisor(tmp_path)
    await wait_until(lambda: len(pids(tmp_path)) == 2)

    def have_reloaded() -> bool:
        program.send_signal(signal.SIGHUP)  # again, as it is not for services that are not ready
        file = tmp_path / "reloaded"
        return file.exists() and set(file.read_text().split()) == {"gateway", "inference"}

    await wait_until(have_reloaded)
    program.terminate()

    assert await asyncio.to_thread(program.wait) == 0
    assert len(pids(tmp_path)) == 2


async def test_no_service_reads_settings_that_the_check_refuses(tmp_path: Path) -> None:
    """SIGHUP with a mistake in the settings of one: a line says so, and all go on as before."""
    (tmp_path / "mistake").touch()
    program = start_supervisor(tmp_path)
    await wait_until(lambda: len(pids(tmp_path)) == 2)
    line = "the settings were not reloaded by any service: 2 problems: - max_requests"
    reports = tmp_path / "reports"

    for _ in range(3):  # the services are ready at last
        reports.unlink(missing_ok=True)
        program.send_signal(signal.SIGHUP)
        await wait_until(lambda: reports.exists() and line in reports.read_text().splitlines())
    program.terminate()

    assert await asyncio.to_thread(program.wait) == 0
    assert not (tmp_path / "reloaded").exists()


async def test_children_exit_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    """By the lifeline: the supervisor cannot handle SIGKILL."""
    program = start_supervisor(tmp_path)
    await wait_until(lambda: len(pids(tmp_path)) == 2)

    program.kill()
    await asyncio.to_thread(program.wait)

    await wait_until(lambda: all(has_exited(pid) for pid in pids(tmp_path)))
    assert sorted(stopped(tmp_path)) == ["gateway", "inference"]


async def test_a_child_that_ignores_sigterm_of_the_lifeline_is_killed(tmp_path: Path) -> None:
    """The second signal is SIGKILL."""
    script = "from corral_cli.up.parent_watch import exit_with_parent\n" + IGNORES_SIGTERM.replace(
        "while True", "exit_with_parent(int(sys.argv[3]), 0.1)\nwhile True"
    )
    read_end, write_end = os.pipe()
    command = [sys.executable, "-c", script, "inference", str(tmp_path), str(read_end)]
    child = await asyncio.create_subprocess_exec(
        *command, pass_fds=[read_end], start_new_session=True
    )
    os.close(read_end)
    await wait_until(lambda: pids(tmp_path))

    os.close(write_end)

    assert await child.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("code", "description"),
    [
        (0, "exited with code 0"),
        (2, "exited with code 2"),
        (-signal.SIGABRT, "was killed by SIGABRT"),
        (-99, "was killed by signal 99"),
    ],
)
def test_exit_codes_are_described(code: int, description: str) -> None:
    assert describe_exit(code) == description


def test_delays_double_up_to_a_limit() -> None:
    """Also for very many failures. The default allows five within half a minute each."""
    policy = RestartPolicy()
    delays = [policy.delay_s(failures) for failures in (1, 2, 3, 4, 5, 6, 5000)]

    assert delays == [0.5, 1, 2, 4, 8, 15, 15]
    assert (policy.failures_allowed, policy.stable_after_s) == (5, 30)
