"""Which services a command calls, and with which credential."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from corral_cli.__main__ import cli
from corral_cli.access import Access, gateway_options
from corral_cli.up.up_lock import LOCK_NAME, write_addresses
from svc_kit.local_files import lock_folder
from tests.unit.corral_cli.test_commands import commands

PROFILES = """
[profiles.lab]
target = "lab:50051"
control = "lab:50052"
gateway = "https://lab.example/v1/"
api_key = "key of lab"

[profiles.far]
control = "far:443"
tls = { server_name = "far.example" }
"""
OPTIONS = {"--target", "--control", "--data-dir", "--api-key", "--service-token-file"}
RUNNING = {
    "target": "127.0.0.1:20001",
    "control": "127.0.0.1:20002",
    "gateway": "http://127.0.0.1:20003",
}


@click.command("show")
@click.argument("service")
@gateway_options
def show(service: str, connect: Access) -> None:
    """Print where and how a service would be called."""
    address = connect.address(service) if service == "gateway" else connect(service).target
    tls = connect.tls.server_name if connect.tls else None
    click.echo(json.dumps([address, connect.credential, tls]))


@click.group
@click.option("--profiles", type=click.Path(path_type=Path))
def group(profiles: Path | None) -> None:
    """As `corral`."""


group.add_command(show)


@contextmanager
def run_up(folder: Path, access: Mapping[str, str]) -> Iterator[None]:
    with lock_folder(folder, LOCK_NAME, holder="x", remedy="y"):
        write_addresses(folder, [], access)
        yield


class Machine:
    """A user with a file of profiles, and the data folders of two installations."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.profiles = home / "profiles.toml"
        self.write(PROFILES)
        for name in ("data", "second"):
            folder = home / name
            folder.mkdir()
            token = folder / "service-token"
            token.write_text(f"token of {name}")
            token.chmod(0o600)

    def write(self, text: str) -> None:
        self.profiles.write_text(text)
        self.profiles.chmod(0o600)

    def run(self, service: str, words: str = "", **environment: str) -> Result:
        """Run the command; `HOME` in words is the folder."""
        arguments = [each.replace("HOME", str(self.home)) for each in words.split()]
        variables: Mapping[str, Any] = {
            "CORRAL_DATA_DIR": str(self.home / "data"),
            **{f"CORRAL_{name}": None for name in ("TARGET", "API_KEY", "SERVICE_TOKEN_FILE")},
            **{f"CORRAL_{name}": value for name, value in environment.items()},
        }
        flags = ["--profiles", str(self.profiles), "show", service, *arguments]
        return CliRunner().invoke(group, flags, env=variables)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("service", "words", "environment", "called"),
    [
        ("inference", "--target lab", {}, ["lab:50051", "key of lab", None]),
        ("control", "--target lab", {}, ["lab:50052", "key of lab", None]),
        ("control", "", {"TARGET": "lab"}, ["lab:50052", "key of lab", None]),
        ("control", "", {"TARGET": "lab", "API_KEY": "k"}, ["lab:50052", "key of lab", None]),
        ("control", "--api-key k", {"TARGET": "lab"}, ["lab:50052", "k", None]),
        ("control", "--target far", {"API_KEY": "k"}, ["far:443", "k", "far.example"]),
        ("control", "--target lab --control b:2", {}, ["b:2", "key of lab", None]),
        ("gateway", "--target lab", {}, ["https://lab.example", "key of lab", None]),
        ("gateway", "--target lab --gateway http://b:2", {}, ["http://b:2", "key of lab", None]),
        ("gateway", "--gateway http://b:2/v1", {"API_KEY": "k"}, ["http://b:2", "k", None]),
        ("inference", "--target a:1", {"API_KEY": "k"}, ["a:1", "k", None]),
        ("control", "--control b:2", {"TARGET": "a:1"}, ["b:2", None, None]),
        (
            *("control", "--control b:2 --service-token-file HOME/data/service-token"),
            *({"API_KEY": "k"}, ["b:2", "token of data", None]),
        ),
    ],
)
def test_options_are_stronger_than_profiles_and_these_than_the_environment(
    machine: Machine,
    service: str,
    words: str,
    environment: dict[str, str],
    called: list[str | None],
) -> None:
    """A profile's own key is sent to it, whatever the environment has."""
    result = machine.run(service, words, **environment)

    assert json.loads(result.output) == called


@pytest.mark.parametrize(
    ("service", "words", "error"),
    [
        ("inference", "--target nowhere", "(there: far, lab)"),
        ("inference", "--target far", "calls the inference service, whose address is not given"),
        ("control", "--target a:1", "add --control HOST:PORT"),
        ("control", "--control b:2 --api-key sché", "has characters that none has"),
        ("control", "--control b:2 --api-key=", "is empty"),
        ("inference", "--control b:2", "add --target HOST:PORT"),
        ("control", "--gateway http://b:2", "add --control HOST:PORT"),
        ("gateway", "--target far", "add --gateway URL"),
        ("gateway", "--gateway http://u:p@b:2", "is not http://HOST:PORT or https://HOST"),
        ("gateway", "--gateway http://b:99999", "is not http://HOST:PORT or https://HOST"),
        ("gateway", "--gateway http://b:2?key=1", "is not http://HOST:PORT or https://HOST"),
        ("gateway", "--gateway http://[::1", "is not http://HOST:PORT or https://HOST"),
        ("gateway", "--data-dir HOME --gateway http://b:2", "either --data-dir or addresses"),
        ("control", "--data-dir HOME/second", "no `corral up` runs with the data folder"),
        ("control", "--data-dir HOME/second --control b:2", "either --data-dir or addresses"),
        ("control", "--target lab --data-dir HOME/second", "either --data-dir or addresses"),
    ],
)
def test_a_choice_without_the_address_calls_nothing_else(
    machine: Machine, service: str, words: str, error: str
) -> None:
    """Another installation may listen on the default port."""
    result = machine.run(service, words)

    assert result.exit_code != 0
    assert error in result.output


def test_the_services_of_a_data_folder_are_called_with_its_token(machine: Machine) -> None:
    """While `corral up` uses it. The default folder is found without an option, for callers with
    their own key."""
    access = RUNNING | {"service_token_file": str(machine.home / "second" / "service-token")}
    others = {"target": "127.0.0.1:30001", "control": "127.0.0.1:30002"}
    with (
        run_up(machine.home / "second", access),
        run_up(machine.home / "data", others | {"service_token_file": "/x"}),
    ):
        chosen = machine.run("control", "--data-dir HOME/second", API_KEY="k", TARGET="lab")
        found = machine.run("inference", API_KEY="k")
        gateway = machine.run("gateway", "--data-dir HOME/second")

    assert json.loads(chosen.output) == [RUNNING["control"], "token of second", None]
    assert json.loads(found.output) == [others["target"], "k", None]
    assert json.loads(gateway.output)[0] == RUNNING["gateway"]


def test_the_default_address_is_named_when_it_is_used(machine: Machine) -> None:
    """Nothing runs with the default data folder, and no profile is the default."""
    control, gateway = machine.run("control"), machine.run("gateway")

    assert "calling 127.0.0.1:50052, the default address of the control service" in control.output
    assert "http://127.0.0.1:8080, the default address of the gateway service (--gateway," in (
        gateway.output
    )


def test_a_profile_can_be_the_default(machine: Machine) -> None:
    """It comes before what runs on this machine."""
    machine.write(f'default = "lab"\n{PROFILES}')
    with run_up(machine.home / "data", RUNNING | {"service_token_file": "/x"}):
        result = machine.run("inference")

    assert json.loads(result.output)[0] == "lab:50051"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("profiles = 1", "profiles: "),
        ("[profiles.a]\naddress = 'a:1'", "profiles.a.address: "),
        ("[profiles.a]\ngateway = 'a:1'", "profiles.a.gateway: "),
        ("= ", "profiles.toml: "),
    ],
)
def test_mistakes_in_the_file_of_profiles_are_named(
    machine: Machine, text: str, error: str
) -> None:
    machine.write(text)

    result = machine.run("control", "--target lab")

    assert (result.exit_code, error in result.output) == (1, True)


def test_every_command_that_calls_a_service_has_the_same_options() -> None:
    """At the command itself, whichever service it calls."""
    found = {
        words: OPTIONS.intersection(*[{o for p in command.params for o in p.opts}])
        for words, command in commands(cli)
        if any("--api-key" in parameter.opts for parameter in command.params)
    }

    assert len(found) > 30
    assert {words: options for words, options in found.items() if options != OPTIONS} == {}


def test_every_command_for_an_installation_has_the_data_folder_as_an_option() -> None:
    """Whether it reads the settings or calls a service."""
    options = {
        words: {option for parameter in command.params for option in parameter.opts}
        for words, command in commands(cli)
    }
    named = {words: found for words, found in options.items() if found & {"--config", "--api-key"}}

    assert {"doctor", "config check", "serve", "models explain", "up", "keys list"} <= set(named)
    assert [words for words, found in named.items() if "--data-dir" not in found] == []


@pytest.mark.parametrize("services", [[], ["--service", "inference", "--service", "control"]])
def test_settings_are_checked_with_the_data_folder_of_the_option(
    tmp_path: Path, services: list[str]
) -> None:
    """It is stronger than the environment, as with `corral up`."""
    folder = tmp_path / "chosen"
    command = ["config", "check", "--json", "--data-dir", str(folder), *services]
    environment = {"CORRAL_DATA_DIR": str(tmp_path / "other")}

    result = CliRunner().invoke(cli, command, env=environment)

    loaded = json.loads(result.output)
    assert {loaded[name]["data_dir"] for name in ("inference", "control")} == {str(folder)}
