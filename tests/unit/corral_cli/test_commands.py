"""Subcommands that need no server, and checks before a server is started."""

import json
import os
import shlex
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from corral_cli.__main__ import Commands, cli, main
from corral_cli.up.command import NamedFile, listen_flag, run_services
from corral_cli.up.plan import Plan, UpFlags
from gateway.config import GatewaySettings
from inference_svc.config import InferenceSettings
from svc_kit.auth.keys import SettingsKeys, hash_key
from svc_kit.settings.groups import load_settings
from svc_kit.settings.sources import find_unknown_variables

PRINT_DATA = {
    *("audit", "backup", "check", "config check", "doctor"),
    *("jobs dead", "restore", "sessions", "top", "usage", "version"),
}
"""The commands that print data, beside those named `list` and `show`."""


def test_every_subcommand_has_a_help_text() -> None:
    """`--help` works for each."""
    for words, command in commands(cli):
        result = CliRunner().invoke(cli, [*words.split(), "--help"])

        assert result.exit_code == 0
        assert command.help


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield all subcommands that are no groups, with their words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield " ".join([*path, name]), command


def test_every_listing_can_be_read_by_a_program() -> None:
    """Also a command that prints one object: `--json` is everywhere."""
    listings = {
        words: command
        for words, command in commands(cli)
        if words in PRINT_DATA or words.split()[-1] in {"list", "show"}
    }

    assert listings.keys() >= PRINT_DATA
    for words, command in listings.items():
        assert "--json" in [name for option in command.params for name in option.opts], words


def test_the_variables_of_options_are_known() -> None:
    """A service refuses unknown variables, so it could not start beside one that is not listed."""
    groups = [cli, *(each for each in cli.commands.values() if isinstance(each, click.Group))]
    every = [*groups, *(command for _, command in commands(cli))]
    names = {
        variable: "1"
        for command in every
        for option in command.params
        if isinstance(variable := option.envvar, str) and variable.startswith("CORRAL_")
    }

    assert "CORRAL_API_KEY" in names
    assert find_unknown_variables(names) == []


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (["corral", "mod"], ["models"]),
        (["corral", "models", "l"], ["list", "load"]),
        (["corral", "completion", "z"], ["zsh"]),
        (["corral", "serve", "--con"], ["--config"]),
    ],
)
def test_the_shell_completes_commands_and_options(words: list[str], completions: list[str]) -> None:
    """The script of `corral completion bash` in bash, which calls the installed command."""
    script = f"""
        eval "$(corral completion bash)"
        COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}
        _corral_completion corral
        echo "${{COMPREPLY[@]}}"
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    result = subprocess.run(
        ["bash", "-c", script], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )

    assert result.stdout.split() == completions


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script_too(shell: str) -> None:
    """Click writes it; `corral` answers it."""
    result = CliRunner().invoke(cli, ["completion", shell])

    assert result.exit_code == 0
    assert f"_CORRAL_COMPLETE={shell}_complete" in result.output


def test_an_empty_address_is_refused() -> None:
    options = [
        (words, name)
        for words, command in commands(cli)
        for option in command.params
        for name in {"--target", "--control"}.intersection(option.opts)
    ]

    assert len(options) > 20
    for words, name in options:
        result = CliRunner().invoke(cli, [*words.split(), name, ""])

        assert result.exit_code == 2
        assert f"Invalid value for '{name}'" in result.output
        assert "it is empty" in result.output


def test_an_adapter_flag_is_split_at_the_first_equals_sign() -> None:
    """The file name may contain the sign too."""
    assert NamedFile().convert("voice=a=b.gguf", None, None) == ("voice", "a=b.gguf")
    for text in ("voice", "voice=", "=a.gguf"):
        with pytest.raises(click.BadParameter):
            NamedFile().convert(text, None, None)


def test_version_prints_the_versions_for_a_bug_report() -> None:
    """Corral, llama-cpp-python, gRPC, protobuf and Python."""
    output = CliRunner().invoke(cli, ["version"]).output

    assert [line.split()[0] for line in output.splitlines()[:5]] == [
        *("corral", "llama-cpp-python", "grpcio", "protobuf", "Python")
    ]
    assert CliRunner().invoke(cli, ["--version"]).output == output.splitlines(keepends=True)[0]
    as_object = json.loads(CliRunner().invoke(cli, ["version", "--json"]).output)
    assert [" ".join(pair) for pair in as_object.items()] == output.splitlines()


def test_a_full_disk_is_reported_as_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "corral_cli", "version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert (result.returncode, result.stderr) == (1, "Error: No space left on device\n")


def test_a_file_error_names_the_file(tmp_path: Path) -> None:
    """But the failure of a server keeps its traceback."""

    def write() -> None:
        (tmp_path / "away" / "file").write_text("")

    @click.group(cls=Commands)
    def group() -> None:
        pass

    for name in ("export", "serve"):
        group.add_command(click.Command(name, callback=write))

    exported = CliRunner().invoke(group, ["export"])
    served = CliRunner().invoke(group, ["serve"])

    assert exported.exit_code == 1
    assert exported.output == f"Error: {tmp_path / 'away' / 'file'}: No such file or directory\n"
    assert isinstance(served.exception, FileNotFoundError)


@pytest.mark.parametrize("name", ['the "red" ones', "back\\slash", "\x7f \u2028 \U0001f40e é"])
def test_special_characters_in_a_key_name_are_escaped(tmp_path: Path, name: str) -> None:
    result = CliRunner().invoke(cli, ["keys", "create", "--offline", "--name", name])

    assert (
        load_settings(GatewaySettings, toml=save(tmp_path, result), environment={}).keys[0].name
        == name
    )


def save(folder: Path, created: Result) -> Path:
    """Write the settings printed by `keys create --offline` to a file."""
    config = folder / "corral.toml"
    printed = created.output
    config.write_text(printed[printed.index("[[") : printed.index("Callers")], encoding="utf-8")
    return config


async def test_a_new_key_is_accepted_by_the_printed_settings(tmp_path: Path) -> None:
    """By every service, without editing them."""
    result = CliRunner().invoke(
        cli,
        [
            *("keys", "create", "--offline", "--name", "ci", "--project", "p"),
            *("--scope", "admin", "--days", "1"),
        ],
    )
    key = result.output.splitlines()[0].removeprefix("key (shown once): ")
    config = save(tmp_path, result)

    gateway = load_settings(GatewaySettings, toml=config, environment={})
    inference = load_settings(InferenceSettings, toml=config, environment={})
    for keys in (gateway.keys, inference.keys):
        principal = await SettingsKeys(keys).verify(key)

        assert (principal.project, principal.scopes) == ("p", frozenset({"admin"}))


@pytest.mark.parametrize(
    "command", [("usage",), ("keys", "create"), ("keys", "create", "--offline")]
)
@pytest.mark.parametrize("days", ["0", "36501", "99999999"])
def test_days_outside_the_limits_are_refused(command: tuple[str, ...], days: str) -> None:
    """Before a server is called."""
    result = CliRunner().invoke(cli, [*command, "--days", days])

    assert result.exit_code == 2
    assert f"{days} is not in the range 1<=x<=36500" in result.output


def test_the_maximum_of_days_is_a_valid_date() -> None:
    """About a hundred years."""
    result = CliRunner().invoke(cli, ["keys", "create", "--offline", "--days", "36500"])

    assert result.exit_code == 0
    assert "expires_at = 2" in result.output


def test_an_existing_key_can_be_hashed() -> None:
    """The key is read from a prompt and not echoed."""
    result = CliRunner().invoke(cli, ["keys", "hash"], input="sk-mine\n")

    assert result.output.splitlines()[-1] == hash_key("sk-mine")
    assert "sk-mine" not in result.output


def test_config_check_prints_the_effective_settings(tmp_path: Path) -> None:
    """Values of the file and defaults, without hashes of keys."""
    config = tmp_path / "corral.toml"
    digest = "a" * 64
    config.write_text(
        f'[gateway]\nlisten = "127.0.0.1:9999"\nkeys = [{{name = "n", sha256 = "{digest}"}}]\n'
    )

    result = CliRunner().invoke(cli, ["config", "check", "--config", str(config)])

    assert result.exit_code == 0
    assert 'listen = "127.0.0.1:9999"' in result.output
    assert "[inference]" in result.output
    assert digest not in result.output
    as_object = CliRunner().invoke(cli, ["config", "check", "--json", "--config", str(config)])
    assert json.loads(as_object.output) == tomllib.loads(result.output)


def test_config_check_reports_every_problem_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of all services, with exit code 1 and no traceback."""
    config = tmp_path / "corral.toml"
    config.write_text('[gateway]\nlisten = "nowhere"\nlogo = 1\n[inference]\nmodels = []\n')
    monkeypatch.setattr("sys.argv", ["corral", "config", "check", "--config", str(config)])

    with pytest.raises(SystemExit) as exit_info:
        main()

    printed = capsys.readouterr().err
    assert exit_info.value.code == 1
    assert all(name in printed for name in ("[gateway] listen", "[gateway] logo", "models"))


@pytest.mark.parametrize(
    ("host", "port", "listen", "address"),
    [
        (None, None, None, None),
        (None, None, "[::1]:80", "[::1]:80"),
        ("0.0.0.0", None, None, "0.0.0.0:8080"),
        (None, 0, None, "127.0.0.1:0"),
        ("::1", 9, None, "[::1]:9"),
    ],
)
def test_host_and_port_are_combined_to_an_address(
    host: str | None, port: int | None, listen: str | None, address: str | None
) -> None:
    """A missing one has a default; without both the setting is not overridden."""
    assert listen_flag(host, port, listen) == address


def test_listen_together_with_port_is_refused() -> None:
    """One of them would be ignored."""
    result = CliRunner().invoke(cli, ["up", "--listen", "127.0.0.1:1", "--port", "2"])

    assert result.exit_code == 2
    assert "--listen cannot be combined with" in result.output


def test_an_invalid_address_is_reported_with_its_flag() -> None:
    """Not with the setting that it overrides."""
    result = CliRunner().invoke(cli, ["up", "--inference-listen", "nowhere"])

    assert result.exit_code == 2
    assert "'--inference-listen'" in result.output


@pytest.mark.parametrize("text", ["", "{not JSON", "[]", '{"custom_id": "a"}', '{"url": 5}'])
def test_a_batch_file_without_a_url_is_refused(tmp_path: Path, text: str) -> None:
    """Before a server is called."""
    file = tmp_path / "requests.jsonl"
    file.write_text(text)
    result = CliRunner().invoke(cli, ["batch", "submit", str(file), "--control", "127.0.0.1:1"])

    assert result.exit_code == 1
    assert "requests.jsonl is not a request with a" in result.output


@pytest.mark.skipif(sys.platform != "linux", reason="ports are reserved on Linux only")
def test_ports_are_reserved_while_the_services_are_supervised(tmp_path: Path) -> None:
    """A restarted service can bind its port again; no connection has taken it meanwhile."""
    num_reserved = 0

    async def supervise(plan: Plan, _inherited: int) -> None:
        nonlocal num_reserved
        for listener in plan.listeners:
            with socket.socket() as connection, pytest.raises(OSError, match="in use"):
                connection.bind((listener.address.host, listener.address.port))
            num_reserved += 1

    any_port = "127.0.0.1:0"
    flags = UpFlags(
        data_dir=tmp_path, listen=any_port, inference_listen=any_port, control_listen=any_port
    )
    run_services(flags, supervise)

    assert num_reserved == 6
