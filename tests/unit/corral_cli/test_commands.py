"""The subcommands that start nothing."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from corral_cli.__main__ import Commands, cli, main
from corral_cli.up import command
from corral_cli.up.command import NamedFile, listen_flag
from corral_cli.up.plan import Plan
from gateway.config import GatewaySettings
from inference_svc.config import InferenceSettings
from svc_kit.auth.keys import SettingsKeys, hash_key
from svc_kit.settings.groups import load_settings


def test_every_subcommand_explains_itself() -> None:
    """--help of each works, and says more than its name."""
    for name in cli.commands:
        result = CliRunner().invoke(cli, [name, "--help"])

        assert result.exit_code == 0
        assert cli.commands[name].help


def options(command: click.Command, *names: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every command below this one, by its words, with each option that it has of these names."""
    for option in command.params:
        yield from (((), name) for name in names if name in option.opts)
    for word, below in getattr(command, "commands", {}).items():
        yield from (((word, *words), name) for words, name in options(below, *names))


@pytest.mark.parametrize(("words", "name"), [*options(cli, "--target", "--control")])
def test_a_server_without_an_address_is_not_looked_for(words: tuple[str, ...], name: str) -> None:
    """By no command: it is told from one that has no server."""
    result = CliRunner().invoke(cli, [*words, name, ""])

    assert result.exit_code == 2
    assert f"Invalid value for '{name}': it is empty" in result.output


def test_an_adapter_is_named_before_its_file() -> None:
    """The file may have the sign too."""
    assert NamedFile().convert("voice=a=b.gguf", None, None) == ("voice", "a=b.gguf")
    for text in ("voice", "voice=", "=a.gguf"):
        with pytest.raises(click.BadParameter):
            NamedFile().convert(text, None, None)


def test_version_names_what_a_bug_report_needs() -> None:
    """Corral, the binding of llama.cpp, gRPC and Python."""
    output = CliRunner().invoke(cli, ["version"]).output

    assert [line.split()[0] for line in output.splitlines()[:5]] == [
        *("corral", "llama-cpp-python", "grpcio", "protobuf", "Python")
    ]


def test_a_full_disk_is_one_line() -> None:
    """Whatever the command writes, to stdout too; it fails."""
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "corral_cli", "version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert (ended.returncode, ended.stderr) == (1, "Error: No space left on device\n")


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The file and why; but a server's failure keeps its traceback."""

    def writing() -> None:
        (tmp_path / "away" / "file").write_text("")

    @click.group(cls=Commands)
    def group() -> None:
        pass

    for name in ("export", "serve"):
        group.add_command(click.Command(name, callback=writing))

    ended = CliRunner().invoke(group, ["export"])
    served = CliRunner().invoke(group, ["serve"])

    assert ended.exit_code == 1
    assert ended.output == f"Error: {tmp_path / 'away' / 'file'}: No such file or directory\n"
    assert isinstance(served.exception, FileNotFoundError)


@pytest.mark.parametrize("name", ['the "red" ones', "back\\slash", "\x7f \u2028 \U0001f40e é"])
def test_a_key_may_be_called_anything_in_the_settings(tmp_path: Path, name: str) -> None:
    """Whatever TOML means by its characters."""
    result = CliRunner().invoke(cli, ["keys", "create", "--offline", "--name", name])
    lines = result.output[result.output.index("[[") : result.output.index("Callers")]
    pasted = tmp_path / "corral.toml"
    pasted.write_text(lines, encoding="utf-8")

    assert load_settings(GatewaySettings, toml=pasted, environment={}).keys[0].name == name


async def test_a_new_key_is_accepted_by_the_settings_printed_with_it(tmp_path: Path) -> None:
    """The lines can be pasted as they are, and both services then know the key."""
    result = CliRunner().invoke(
        cli,
        [
            *("keys", "create", "--offline", "--name", "ci", "--project", "p"),
            *("--scope", "admin", "--days", "1"),
        ],
    )
    key = result.output.splitlines()[0].removeprefix("key (shown once): ")
    pasted = tmp_path / "corral.toml"
    pasted.write_text(result.output[result.output.index("[[") : result.output.index("Callers")])

    gateway = load_settings(GatewaySettings, toml=pasted, environment={})
    inference = load_settings(InferenceSettings, toml=pasted, environment={})
    for accepted in (gateway.keys, inference.keys):
        principal = await SettingsKeys(accepted).verify(key)

        assert (principal.project, principal.scopes) == ("p", frozenset({"admin"}))


@pytest.mark.parametrize(
    "command", [("usage",), ("keys", "create"), ("keys", "create", "--offline")]
)
@pytest.mark.parametrize("days", ["0", "36501", "99999999"])
def test_days_are_a_date_that_there_is(command: tuple[str, ...], days: str) -> None:
    """A hundred years at most: more is no date, and is refused before a server is asked."""
    result = CliRunner().invoke(cli, [*command, "--days", days])

    assert result.exit_code == 2
    assert f"{days} is not in the range 1<=x<=36500" in result.output


def test_a_key_may_be_valid_for_a_hundred_years() -> None:
    """The longest span that can be asked for is a date."""
    result = CliRunner().invoke(cli, ["keys", "create", "--offline", "--days", "36500"])

    assert result.exit_code == 0
    assert "expires_at = 2" in result.output


def test_a_known_key_can_be_hashed() -> None:
    """For keys that were made elsewhere; the key is not echoed."""
    result = CliRunner().invoke(cli, ["keys", "hash"], input="sk-mine\n")

    assert result.output.splitlines()[-1] == hash_key("sk-mine")
    assert "sk-mine" not in result.output


def test_config_check_shows_the_settings_in_force(tmp_path: Path) -> None:
    """The file counts, defaults are filled in, hashes of keys are hidden."""
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


def test_config_check_reports_every_problem_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both services, all mistakes, exit code 1, no traceback."""
    config = tmp_path / "corral.toml"
    config.write_text('[gateway]\nlisten = "nowhere"\nlogo = 1\n[inference]\nmodels = []\n')
    monkeypatch.setattr("sys.argv", ["corral", "config", "check", "--config", str(config)])

    with pytest.raises(SystemExit) as ended:
        main()

    printed = capsys.readouterr().err
    assert ended.value.code == 1
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
def test_host_and_port_are_one_address(
    host: str | None, port: int | None, listen: str | None, address: str | None
) -> None:
    """Either flag has a default of its own; none of them leaves the setting alone."""
    assert listen_flag(host, port, listen) == address


def test_listen_beside_port_is_refused() -> None:
    """One of them would be ignored."""
    result = CliRunner().invoke(cli, ["up", "--listen", "127.0.0.1:1", "--port", "2"])

    assert result.exit_code == 2
    assert "--listen says both" in result.output


def test_a_mistyped_address_is_blamed_on_its_flag() -> None:
    """Not on the setting that it would have become."""
    result = CliRunner().invoke(cli, ["up", "--inference-listen", "nowhere"])

    assert result.exit_code == 2
    assert "'--inference-listen'" in result.output


def test_a_batch_without_a_request_is_not_sent(tmp_path: Path) -> None:
    """What its lines are for cannot be said, and no server is asked: there is none."""
    for text in ("", "{not JSON", "[]", '{"custom_id": "a"}', '{"url": 5}'):
        file = tmp_path / "requests.jsonl"
        file.write_text(text)
        result = CliRunner().invoke(cli, ["batch", "--target", "127.0.0.1:1", "submit", str(file)])

        assert result.exit_code == 1
        assert "requests.jsonl is no request with a" in result.output


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is kept")
def test_ports_are_kept_for_the_services_while_they_are_supervised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is started again finds its port, whoever has connected to whom meanwhile."""
    kept: list[bool] = []

    async def supervise(plan: Plan, _: float) -> None:
        for address in plan.listeners:
            with socket.socket() as connection:
                try:
                    connection.bind((address.host, address.port))
                except OSError:
                    kept.append(True)

    monkeypatch.setattr(command, "keep_running", supervise)
    names = ("--listen", "--inference-listen", "--control-listen")
    anywhere = [word for name in names for word in (name, "127.0.0.1:0")]
    result = CliRunner().invoke(cli, ["up", "--data-dir", str(tmp_path), *anywhere])

    assert result.exit_code == 0, result.output
    assert kept == [True] * 6
