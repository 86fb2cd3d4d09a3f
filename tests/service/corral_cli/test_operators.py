"""`corral keys`, `corral projects` and `corral usage` against a real control service."""

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from corral_cli.__main__ import cli
from tests.support.control import RunningControl, a_control
from tests.support.operators import Operator, a_delta


@dataclass(frozen=True)
class Served:
    """A control service on a thread of its own, and the command in front of it."""

    running: RunningControl
    loop: asyncio.AbstractEventLoop

    def corral(self, *arguments: str, credential: str | None = None) -> Result:
        """Run the command as the installation's owner, or with a key."""
        shown = ["--service-token-file", str(self.running.folder / "token")]
        if credential is not None:
            shown = ["--api-key", credential]
        where = ["--target", self.running.target]
        return CliRunner().invoke(cli, [*arguments, *where, *shown], env={"CORRAL_API_KEY": None})

    def output(self, *arguments: str) -> str:
        """What the command prints; it must not fail."""
        result = self.corral(*arguments)
        assert result.exit_code == 0, result.output
        return result.output

    def verdict(self, key: str) -> str:
        """What a service is told of a key."""
        asking = Operator.of(self.running).verdict(key)
        return asyncio.run_coroutine_threadsafe(asking, self.loop).result(10)


@contextmanager
def serve(folder: Path, *, require_keys: bool) -> Iterator[Served]:
    """A control service beside the command, which has an event loop of its own."""
    ready, ending = threading.Event(), threading.Event()
    made: list[Served] = []

    async def run() -> None:
        async with a_control(folder, require_keys=require_keys) as running:
            made.append(Served(running, asyncio.get_running_loop()))
            ready.set()
            await asyncio.to_thread(ending.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert ready.wait(20)
        yield made[0]
    finally:
        ending.set()
        thread.join()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A control service that wants keys."""
    with serve(tmp_path, require_keys=True) as running:
        yield running


def test_a_key_is_made_listed_and_revoked(served: Served) -> None:
    """The key is shown once; its id, which lists show, ends it."""
    served.output("projects", "create", "red")
    made = served.output(
        *("keys", "create", "--name", "ci", "--project", "red", "--scope", "admin"),
        *("--priority", "batch", "--days", "3"),
    )
    key = re.match(r"key \(shown once\): (\S+)\n", made)[1]  # type: ignore[index]
    key_id = re.search(r"key_\w+", made)[0]  # type: ignore[index]
    before = served.verdict(key)
    listed = served.output("keys", "list")
    by_key = served.corral("keys", "list", "--project", "red", credential=key)
    revoked = served.output("keys", "revoke", key_id)

    assert before == "VALID"
    assert f"{key_id}    {key[:14]}…    ci    project red, admin, made " in listed
    assert ", until " in listed
    assert key not in listed
    assert key_id in by_key.output
    assert "revoked" in revoked
    assert served.verdict(key) == "REVOKED"
    assert key_id not in served.output("keys", "list")
    assert key_id in served.output("keys", "list", "--all")
    assert "without a key" not in made


def test_whoever_makes_a_key_learns_that_others_come_without_one(tmp_path: Path) -> None:
    """On loopback that is the default, and a key alone does not end it."""
    with serve(tmp_path, require_keys=False) as served:
        made = served.output("keys", "create")

    assert "Callers without a key are still served on this machine" in made
    assert "--require-keys" in made


def test_projects_are_listed_and_archived(served: Served) -> None:
    """Archived ones on request."""
    served.output("projects", "create", "red", "--name", "The reds")
    archived = served.output("projects", "archive", "red")
    left, everything = served.output("projects", "list"), served.output("projects", "list", "--all")

    assert re.fullmatch(r"red    The reds    made \S+ \S+, archived \S+ \S+\n", archived)
    assert [line.split()[0] for line in left.splitlines()] == ["default"]
    assert [line.split()[0] for line in everything.splitlines()] == ["default", "red"]


def test_usage_is_a_table(served: Served) -> None:
    """By day or by hour, of one project or of all."""
    operator, now = Operator.of(served.running), served.running.clock()
    deltas = [
        a_delta(now, (1200, 34567, 800, 90), project="red"),
        a_delta(now, (1, 2, 0, 0), project="blue"),
    ]
    reporting = operator.report("one", *deltas)
    asyncio.run_coroutine_threadsafe(reporting, served.loop).result(10)
    day, hour = now.strftime("%Y-%m-%d 00:00"), now.strftime("%Y-%m-%d %H:00")

    lines = served.output("usage").splitlines()
    assert lines[0].split() == [
        *("from", "(UTC)", "project", "model", "requests", "prompt", "cached", "completion")
    ]
    assert lines[1].split() == [*day.split(), "blue", "demo", "1", "2", "0", "0"]
    assert lines[2].split() == [*day.split(), "red", "demo", "1,200", "34,567", "800", "90"]
    assert {len(line) for line in lines} == {len(lines[0])}
    only = served.output("usage", "--project", "red", "--by", "hour").splitlines()
    assert only[1].startswith(f"{hour}  red")
    assert len(only) == 2


@pytest.mark.parametrize(
    ("arguments", "credential", "remedy"),
    [
        (("keys", "list"), "sk-wrong", "--api-key"),
        (("keys", "create", "--project", "nobody"), None, "No such project: nobody"),
        (("keys", "revoke", "key_1"), None, "No such API key: key_1"),
        (("projects", "create", "Red"), None, "lower-case"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
def test_what_fails_is_one_line_with_its_remedy(
    served: Served, arguments: tuple[str, ...], credential: str | None, remedy: str
) -> None:
    """And exit code 1."""
    result = served.corral(*arguments, credential=credential)

    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert remedy in result.output
    assert len(result.output.splitlines()) == 1


def test_a_control_service_that_is_not_there_is_said() -> None:
    """With the command that starts one."""
    result = CliRunner().invoke(cli, ["usage", "--target", "127.0.0.1:1"])

    assert result.exit_code == 1
    assert "no server answers at 127.0.0.1:1" in result.output
