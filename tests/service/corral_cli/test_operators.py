"""`corral keys`, `corral projects` and `corral usage` against a real control service."""

import asyncio
import csv
import io
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from corral_cli.__main__ import cli
from tests.support.certificates import Authority
from tests.support.control import RunningControl, run_control
from tests.support.operators import Operator, make_usage_delta


@dataclass(frozen=True)
class Served:
    """A control service in another thread, and the command that calls it."""

    running: RunningControl
    loop: asyncio.AbstractEventLoop

    def corral(self, *arguments: str | Path, credential: str | None = None) -> Result:
        """Run the command with the service token, or with an API key."""
        access = ["--service-token-file", str(self.running.folder / "token")]
        if credential is not None:
            access = ["--api-key", credential]
        words = [*map(str, arguments), "--control", self.running.target, *access]
        return CliRunner().invoke(cli, words, env={"CORRAL_API_KEY": None})

    def output(self, *arguments: str) -> str:
        """Return the output of the command, which must succeed."""
        result = self.corral(*arguments)
        assert result.exit_code == 0, result.output
        return result.output

    def verdict(self, key: str) -> str:
        verify = Operator.of(self.running).verdict(key)
        return asyncio.run_coroutine_threadsafe(verify, self.loop).result(10)


@contextmanager
def serve(folder: Path, *, require_keys: bool, **settings: Any) -> Iterator[Served]:
    """Run a control service in another thread, because the command has its own event loop."""
    ready, stop = threading.Event(), threading.Event()
    services: list[Served] = []

    async def run() -> None:
        async with run_control(folder, require_keys=require_keys, **settings) as running:
            services.append(Served(running, asyncio.get_running_loop()))
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert ready.wait(20)
        yield services[0]
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serve(tmp_path, require_keys=True) as running:
        yield running


def test_a_key_is_created_listed_and_revoked(served: Served) -> None:
    """The key is printed once; lists show its id."""
    served.output("projects", "create", "red")
    created = served.output(
        *("keys", "create", "--name", "ci", "--project", "red", "--scope", "admin"),
        *("--priority", "batch", "--days", "3"),
    )
    key = re.match(r"key \(shown once\): (\S+)\n", created)[1]  # type: ignore[index]
    key_id = re.search(r"key_\w+", created)[0]  # type: ignore[index]
    before = served.verdict(key)
    listed = served.output("keys", "list")
    (as_json, *_) = json.loads(served.output("keys", "list", "--json"))
    by_key = served.corral("keys", "list", "--project", "red", credential=key)
    revoked = served.output("keys", "revoke", key_id)

    assert before == "VALID"
    assert f"{key_id}    {key[:14]}…    ci    project red, admin, made " in listed
    assert ", until " in listed
    assert key not in listed
    assert key_id in by_key.output
    assert (as_json["id"], as_json["scopes"]) == (key_id, ["KEY_SCOPE_ADMIN"])
    assert "revoked" in revoked
    assert served.verdict(key) == "REVOKED"
    assert key_id not in served.output("keys", "list")
    assert key_id in served.output("keys", "list", "--all")
    assert "without a key" not in created


def test_a_key_is_created_with_budgets(served: Served) -> None:
    """One that is enforced and one that only warns, of the key alone. Without the control service
    there are none."""
    created = served.output(
        *("keys", "create", "--budget", "12.5", "--soft-budget", "10", "--budget-period", "day")
    )
    key_id = re.search(r"key_\w+", created)[0]  # type: ignore[index]
    listed = json.loads(served.output("limits", "list", "--json"))
    offline = served.corral("keys", "create", "--budget", "1", "--offline")

    assert sorted(
        (each["key"], each["unit"], each["amount"], each["period"], each["mode"]) for each in listed
    ) == [
        (key_id, "UNIT_COST", "10000000000", "PERIOD_DAY", "MODE_SHADOW"),
        (key_id, "UNIT_COST", "12500000000", "PERIOD_DAY", "MODE_ENFORCE"),
    ]
    assert offline.exit_code == 2


def test_a_key_is_rotated(served: Served) -> None:
    """The new secret is printed once, and the previous one is valid for the hours of the option."""
    created = served.output(
        *("keys", "create", "--scope", "generate", "--model", "qwen3", "--allow-unknown"),
        *("--network", "127.0.0.0/8"),
    )
    old = re.match(r"key \(shown once\): (\S+)\n", created)[1]  # type: ignore[index]
    key_id = re.search(r"key_\w+", created)[0]  # type: ignore[index]
    rotated = served.output("keys", "rotate", key_id, "--overlap-hours", "2", "--days", "9")
    new = re.match(r"key \(shown once\): (\S+)\n", rotated)[1]  # type: ignore[index]
    again = served.output("keys", "rotate", key_id, "--overlap-hours", "0")

    assert "models qwen3, networks 127.0.0.0/8" in created
    assert re.search(r"until \S+ \S+, rotated \S+ \S+, previous secret until ", rotated)
    assert len({old, new, again.split()[3]}) == 3
    assert [served.verdict(key) for key in (old, new)] == ["UNKNOWN", "EXPIRED"]


def test_the_audit_log_lists_acts(served: Served) -> None:
    """Newest first; of one key or object."""
    served.output("projects", "create", "red")
    served.running.clock.advance(seconds=1)
    key_id = re.search(r"key_\w+", served.output("keys", "create"))[0]  # type: ignore[index]
    lines = served.output("audit").splitlines()
    of_key = served.output("audit", "--object", key_id)

    assert [line.split("    ")[3] for line in lines] == [
        *("KeyService/CreateKey", "ProjectService/CreateProject")
    ]
    assert of_key == lines[0] + "\n"
    assert lines[0].split("    ")[1:3] in (["service", "127.0.0.1"], ["service", "::1"])
    assert served.output("audit", "--key", "key_none") == ""
    [event] = json.loads(served.output("audit", "--object", key_id, "--json"))
    assert (event["method"], event["target"]) == ("KeyService/CreateKey", key_id)


def test_without_a_credential_the_error_says_how_to_create_the_first_key(served: Served) -> None:
    """With the service token, since there is no key yet."""
    words = ["projects", "list", "--control", served.running.target]
    result = CliRunner().invoke(cli, words, env={"CORRAL_API_KEY": None})

    assert result.exit_code == 1
    assert "on the server, --data-dir FOLDER, whose service token" in result.output


def test_creating_a_key_warns_if_keys_are_not_required(tmp_path: Path) -> None:
    """The default on loopback, which a key alone does not change."""
    with serve(tmp_path, require_keys=False) as served:
        created = served.output("keys", "create")

    assert "Callers without a key are still served on this machine" in created
    assert "--require-keys" in created


def test_a_service_with_mtls_is_reached_with_its_authority_and_a_certificate(
    tmp_path: Path,
) -> None:
    """Given before the subcommand; without them the error says which option is missing."""
    authority = Authority()
    ca_file = tmp_path / "ca.crt"
    ca_file.write_bytes(authority.certificate)
    certificate, key = authority.issue("control").write(tmp_path, "control")
    mine, my_key = authority.issue("operator", client=True).write(tmp_path, "operator")
    tls = {"certificate_file": certificate, "key_file": key, "client_ca_file": ca_file}
    with serve(tmp_path, require_keys=True, tls=tls) as served:
        listing = ("projects", "list")
        options = ("--ca-file", ca_file, "--certificate-file", mine, "--key-file", my_key)
        listed = served.corral(*options, *listing)
        refused = [served.corral(*options[:num], *listing) for num in (0, 2, 4)]

    assert listed.output.startswith("default")
    assert [result.exit_code for result in refused] == [1, 1, 2]
    assert "--ca-file" in refused[0].output
    assert "--certificate-file needs --key-file" in refused[2].output


def test_projects_are_listed_and_archived(served: Served) -> None:
    """Archived ones are listed with --all only."""
    served.output("projects", "create", "red", "--name", "The reds")
    archived = served.output("projects", "archive", "red")
    active, everything = (served.output("projects", "list", *flags) for flags in ([], ["--all"]))

    assert re.fullmatch(r"red    The reds    made \S+ \S+, archived \S+ \S+\n", archived)
    assert [line.split()[0] for line in active.splitlines()] == ["default"]
    assert [line.split()[0] for line in everything.splitlines()] == ["default", "red"]


def test_limits_are_created_changed_and_deleted(served: Served) -> None:
    """Amounts of cost are in the currency, all others are whole numbers."""
    calls = ("limits", "create", "calls", "--unit", "requests", "--period", "minute")
    served.output(*calls, "--amount", "6000", "--per", "key", "--per", "model")
    spend = ("limits", "create", "spend", "--unit", "cost", "--period", "month", "--shadow")
    assert "No such project" in served.corral(*spend, "--amount", "1", "--project", "red").output
    served.output(*spend, "--amount", "12.50", "--project", "red", "--allow-unknown")
    listed = served.output("limits", "list").splitlines()
    served.output("limits", "update", "spend", "--amount", "0.000000001", "--mode", "enforce")
    served.output("limits", "delete", "calls")

    assert listed == [
        "calls    6,000 requests per minute    each key, each model",
        "spend    12.5 cost per month    project red    shadow",
    ]
    assert served.output("limits", "list") == "spend    0.000000001 cost per month    project red\n"
    assert "whole number" in served.corral(*calls, "--amount", "1.5").output
    assert "Nothing to change" in served.corral("limits", "update", "spend").output


def test_what_limits_have_left_is_a_table(served: Served) -> None:
    """Of all limits or one, amounts of cost in the currency, and as JSON."""
    for name, unit, period, amount in (
        ("calls", "requests", "minute", "6000"),
        ("spend", "cost", "month", "12.50"),
    ):
        served.output(
            *("limits", "create", name, "--unit", unit, "--period", period, "--amount", amount)
        )
    lines = [line.split() for line in served.output("limits", "status").splitlines()]
    (spend,) = json.loads(served.output("limits", "status", "spend", "--json"))

    assert lines[0] == ["LIMIT", "FOR", "LEFT", "HELD", "USED", "OF", "RESETS"]
    assert lines[1] == ["calls", "all", "6,000", "0", "0", "6,000"]
    assert lines[2][:6] == ["spend", "all", "12.5", "0", "0", "12.5"]
    assert lines[2][6].endswith("-01")
    assert (spend["limit_id"], spend["remaining"]) == ("spend", "12500000000")
    assert served.corral("limits", "status", "gone").exit_code == 1


def test_usage_is_a_table(served: Served) -> None:
    """By day or hour, of one project or all."""
    operator, now = Operator.of(served.running), served.running.clock()
    deltas = [
        make_usage_delta(now, (1200, 34567, 800, 90), project="red"),
        make_usage_delta(now, (1, 2, 0, 0), project="blue"),
    ]
    report = operator.report("one", *deltas)
    asyncio.run_coroutine_threadsafe(report, served.loop).result(10)
    day, hour = now.strftime("%Y-%m-%d 00:00"), now.strftime("%Y-%m-%d %H:00")

    lines = served.output("usage").splitlines()
    assert lines[0].split() == [
        *("from", "(UTC)", "project", "model", "requests", "prompt", "cached", "completion", "cost")
    ]
    assert lines[1].split() == [*day.split(), "blue", "demo", "1", "2", "0", "0", "0.000000"]
    counts = ["1,200", "34,567", "800", "90", "0.000000"]
    assert lines[2].split() == [*day.split(), "red", "demo", *counts]
    assert {len(line) for line in lines} == {len(lines[0])}
    only = served.output("usage", "--project", "red", "--by", "hour").splitlines()
    assert only[1].startswith(f"{hour}  red")
    blue, red = json.loads(served.output("usage", "--json"))
    assert (blue["project"], red["counts"]["prompt_tokens"]) == ("blue", "34567")
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
def test_an_error_is_one_line_with_a_remedy(
    served: Served, arguments: tuple[str, ...], credential: str | None, remedy: str
) -> None:
    result = served.corral(*arguments, credential=credential)

    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert remedy in result.output
    assert len(result.output.splitlines()) == 1


def test_usage_and_audit_are_exported_as_csv(served: Served) -> None:
    """With a header of the fields of the gRPC API, and no cell that a spreadsheet calculates."""
    operator, now = Operator.of(served.running), served.running.clock()
    delta = make_usage_delta(now, (3, 20, 10, 5), project='=HYPERLINK("x")')
    asyncio.run_coroutine_threadsafe(operator.report("one", delta), served.loop).result(10)
    served.output("projects", "create", "red")

    (usage,) = csv.DictReader(io.StringIO(served.output("usage", "--format", "csv")))
    (act,) = csv.DictReader(io.StringIO(served.output("audit", "--format", "csv")))
    assert (usage["project"], usage["model"]) == ('\'=HYPERLINK("x")', "demo")
    assert (usage["counts.requests"], usage["counts.prompt_tokens"]) == ("3", "20")
    assert usage["start_time"] == now.strftime("%Y-%m-%dT00:00:00Z")
    assert (act["method"], act["target"]) == ("ProjectService/CreateProject", "red")
    (event,) = json.loads(served.output("audit", "--format", "json"))
    assert {name: act[name] for name in event} == event
    empty = served.output("usage", "--project", "none", "--format", "csv")
    assert empty.rstrip("\r\n").split(",") == list(usage)
