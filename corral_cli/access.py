"""Which services a command calls, and with which credential: the options `--target`, `--control`,
`--data-dir`, `--api-key` and `--service-token-file`, which all commands share, and the file of
profiles (`docs/operate/command.md`)."""

import functools
import tomllib
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any, Final

import click
from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import Field, SecretStr, ValidationError

from corral_cli.connection import Connection, command_tls
from corral_cli.output import echo
from corral_cli.up.up_lock import read_running
from svc_kit.network import parse_addresses
from svc_kit.settings.groups import (
    SettingsGroup,
    UpstreamTlsSettings,
    default_data_dir,
    read_secret,
)

DAYS: Final = click.IntRange(min=1, max=36500)
"""A number of days. The limit keeps dates before and after now within the range of datetime."""

DEFAULT_ADDRESSES: Final = {"inference": "127.0.0.1:50051", "control": "127.0.0.1:50052"}
_OPTIONS: Final = {"inference": "--target", "control": "--control"}


class Profile(SettingsGroup):
    """Addresses of an installation, and the credential for it."""

    target: str = ""
    """HOST:PORT of the inference service."""
    control: str = ""
    """HOST:PORT of the control service."""
    api_key: SecretStr | None = None
    api_key_file: Path | None = None
    service_token_file: Path | None = None
    tls: UpstreamTlsSettings | None = None

    def address(self, service: str) -> str:
        """The address of a service, empty if the profile has none."""
        return self.target if service == "inference" else self.control

    def credential(self) -> str | None:
        """The API key or service token. Raises StartupError if its file cannot be read."""
        if self.api_key is not None:
            return self.api_key.get_secret_value()
        file = self.api_key_file or self.service_token_file
        return None if file is None else read_secret(file.expanduser())


class Profiles(SettingsGroup):
    default: str = ""
    """The profile of commands that name none."""
    profiles: dict[str, Profile] = Field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> "Profiles":
        """Read the file; it may be missing. Raises click.ClickException, and StartupError if other
        users can read it."""
        if not file.exists():
            return cls()
        try:
            return cls.model_validate(tomllib.loads(read_secret(file)))
        except tomllib.TOMLDecodeError as error:
            raise click.ClickException(f"{file}: {error}") from error
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise click.ClickException(f"{file}: {place}: {first['msg']}") from error

    def find(self, name: str, file: Path) -> Profile:
        """The profile of this name. Raises click.ClickException."""
        if name not in self.profiles:
            known = ", ".join(sorted(self.profiles)) or "none"
            text = f"{name!r} is no HOST:PORT and no profile of {file} (there: {known})"
            raise click.ClickException(text)
        return self.profiles[name]


class _TargetText(click.ParamType[str]):
    """A gRPC address, a list of them, or the name of a profile. An empty one is refused: usually a
    shell variable that is not set."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text unchanged. Raises click.BadParameter if it is empty."""
        if not value.strip():
            self.fail("it is empty; give host:port", param, ctx)
        if "," in value:
            try:
                parse_addresses(value)
            except ValueError as error:
                self.fail(str(error), param, ctx)
        return value


def inference_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options; the command receives a connection to the inference service as
    `inference`."""
    return _shared_options(command, "inference")


def control_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options; the command receives a connection to the control service as
    `control`."""
    return _shared_options(command, "control")


def access_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options; the command receives `connect`, which returns the connection to the
    service that it is called with, `inference` or `control`."""

    @click.option(
        "--target",
        type=_TargetText(),
        envvar="CORRAL_TARGET",
        show_envvar=True,
        help="HOST:PORT of the inference service, several with commas, or the name of a profile.",
    )
    @click.option(
        "--control",
        "control_address",
        type=_TargetText(),
        help="HOST:PORT of the control service.",
    )
    @click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False),
        help="The data folder of a running `corral up`: its addresses and its service token.",
    )
    @click.option(
        "--api-key",
        envvar="CORRAL_API_KEY",
        show_envvar=True,
        help="The API key, if the server requires one.",
    )
    @click.option(
        "--service-token-file",
        envvar="CORRAL_SERVICE_TOKEN_FILE",
        show_envvar=True,
        type=click.Path(path_type=Path),
        help="Instead of a key: the file service-token in the data folder, readable by the"
        " installation's owner.",
    )
    @functools.wraps(command)
    def with_access(
        *args: Any,
        target: str | None,
        control_address: str | None,
        data_dir: Path | None,
        api_key: str | None,
        service_token_file: Path | None,
        **kwargs: Any,
    ) -> Any:
        chosen = _choose(target, control_address, data_dir)
        credential = _choose_credential(chosen, api_key, service_token_file)
        connect = functools.partial(_connect, chosen, credential)
        return command(*args, connect=connect, **kwargs)

    return with_access


def _shared_options(command: Callable[..., Any], service: str) -> Callable[..., Any]:
    @functools.wraps(command)
    def with_connection(*args: Any, connect: Callable[[str], Connection], **kwargs: Any) -> Any:
        return command(*args, **{service: connect(service)}, **kwargs)

    return access_options(with_connection)


def _on_command_line(option: str) -> bool:
    source = click.get_current_context().get_parameter_source(option)
    return source is click.core.ParameterSource.COMMANDLINE


def _choose(target: str | None, control: str | None, data_dir: Path | None) -> Profile | None:
    """The installation that options, environment and profiles name; None if they name none.

    Raises click.ClickException.
    """
    if data_dir is not None:
        if control or (target and _on_command_line("target")):
            raise click.UsageError("Give either --data-dir or addresses.")
        return _of_folder(data_dir)
    file = profiles_file()
    if target is None and control is None:
        profiles = Profiles.read(file)
        if profiles.default:
            return profiles.find(profiles.default, file)
        running = read_running(default_data_dir())
        # The owner's token is for who asks for it: other callers keep the key of the environment.
        if running is None:
            return None
        return Profile.model_validate({**running.access, "service_token_file": None})
    if target is None or ":" in target:
        return Profile(target=target or "", control=control or "")
    profile = Profiles.read(file).find(target, file)
    return profile.model_copy(update={"control": control}) if control else profile


def _of_folder(data_dir: Path) -> Profile:
    running = read_running(data_dir)
    if running is None:
        raise click.ClickException(f"no `corral up` runs with the data folder {data_dir}")
    return Profile.model_validate(running.access)


def _choose_credential(
    chosen: Profile | None, api_key: str | None, token_file: Path | None
) -> str | None:
    """The credential of the command line, else of the chosen profile, else of the environment."""
    is_given = _on_command_line("api_key") or _on_command_line("service_token_file")
    if chosen is not None and not is_given and (own := chosen.credential()) is not None:
        return own
    if api_key is not None and not _on_command_line("service_token_file"):
        return api_key
    return None if token_file is None else read_secret(token_file)


def _connect(chosen: Profile | None, credential: str | None, service: str) -> Connection:
    if chosen is None:
        address = DEFAULT_ADDRESSES[service]
        text = f"corral: calling {address}, the default address of the {service} service"
        echo(f"{text} ({_OPTIONS[service]}, CORRAL_TARGET or a profile name others)", err=True)
        return Connection(address, credential, command_tls())
    address = chosen.address(service)
    if not address:
        raise click.ClickException(
            f"this command calls the {service} service, whose address is not given: add"
            f" {_OPTIONS[service]} HOST:PORT, or name a profile or a data folder that has it"
        )
    return Connection(address, credential, command_tls() or chosen.tls)


def profiles_file() -> Path:
    """The file of profiles: `--profiles` of the whole command, else in the user's configuration."""
    chosen: Path | None = click.get_current_context().find_root().params.get("profiles")
    return chosen or Path(click.get_app_dir("corral")) / "profiles.toml"


def format_time(stamp: Timestamp) -> str:
    """Format a time to the minute, in UTC."""
    return stamp.ToDatetime(UTC).strftime("%Y-%m-%d %H:%M")
