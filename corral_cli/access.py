"""Which services a command calls, and with which credential: the options `--target`, `--control`,
`--data-dir`, `--api-key` and `--service-token-file`, which all commands share, and the file of
profiles (`docs/operate/command.md`)."""

import functools
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Annotated, Any, Final

import click
from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import AfterValidator, Field, SecretStr, ValidationError

from corral_cli.connection import Connection, command_tls
from corral_cli.output import echo
from corral_cli.up.up_lock import read_running
from svc_kit.network import is_http_url, parse_addresses
from svc_kit.settings.groups import (
    SettingsGroup,
    UpstreamTlsSettings,
    default_data_dir,
    read_secret,
)

DAYS: Final = click.IntRange(min=1, max=36500)
"""A number of days. The limit keeps dates before and after now within the range of datetime."""

DEFAULT_ADDRESSES: Final = {
    "inference": "127.0.0.1:50051",
    "control": "127.0.0.1:50052",
    "gateway": "http://127.0.0.1:8080",
}
_FIELDS: Final = {"inference": "target", "control": "control", "gateway": "gateway"}
_OPTIONS: Final = {
    "inference": "--target HOST:PORT",
    "control": "--control HOST:PORT",
    "gateway": "--gateway URL",
}


def _gateway_url(text: str) -> str:
    """A gateway's URL without the `/v1` of OpenAI's clients. Raises ValueError, also for one with a
    password, which would become an option of programs."""
    if not is_http_url(text):
        raise ValueError(f"{text!r} is not http://HOST:PORT or https://HOST")
    return text.rstrip("/").removesuffix("/v1")


class Profile(SettingsGroup):
    """Addresses of an installation, and the credential for it."""

    target: str = ""
    """HOST:PORT of the inference service."""
    control: str = ""
    """HOST:PORT of the control service."""
    gateway: Annotated[str, AfterValidator(_gateway_url)] = ""
    """URL of the gateway, as in http://10.0.0.5:8080."""
    api_key: SecretStr | None = None
    api_key_file: Path | None = None
    service_token_file: Path | None = None
    tls: UpstreamTlsSettings | None = None

    def address(self, service: str) -> str:
        """The address of a service, empty if the profile has none."""
        address: str = getattr(self, _FIELDS[service])
        return address

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


class _GatewayText(click.ParamType[str]):
    """The URL of a gateway, with or without `/v1`."""

    name = "url"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the URL without `/v1`. Raises click.BadParameter."""
        try:
            return _gateway_url(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@dataclass(frozen=True)
class Access:
    """The services that the options of a command name, and the credential for them."""

    chosen: Profile | None
    """None: no installation is named, and the default addresses are called."""
    credential: str | None = field(repr=False)

    def __call__(self, service: str) -> Connection:
        """The connection to the service `inference` or `control`. Raises click.ClickException."""
        return Connection(self.address(service), self.credential, self.tls)

    @property
    def tls(self) -> UpstreamTlsSettings | None:
        """That of the whole command, else of the installation."""
        return command_tls() or (self.chosen.tls if self.chosen else None)

    def address(self, service: str) -> str:
        """The address of a service; of `gateway`, its URL. Raises click.ClickException."""
        if self.chosen is None:
            address, option = DEFAULT_ADDRESSES[service], _OPTIONS[service].partition(" ")[0]
            text = f"corral: calling {address}, the default address of the {service} service"
            echo(f"{text} ({option}, CORRAL_TARGET or a profile name others)", err=True)
            return address
        if not (address := self.chosen.address(service)):
            raise click.ClickException(
                f"this command calls the {service} service, whose address is not given: add"
                f" {_OPTIONS[service]}, or name a profile or a data folder that has it"
            )
        return address


def gateway_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `access_options`, and `--gateway`, which names a place as they do."""
    option = click.option(
        "--gateway", type=_GatewayText(), help="URL of the gateway, as in http://127.0.0.1:8080."
    )
    return option(access_options(command))


def inference_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options; the command receives a connection to the inference service as
    `inference`."""
    return _shared_options(command, "inference")


def control_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options; the command receives a connection to the control service as
    `control`."""
    return _shared_options(command, "control")


def access_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options; the command receives `connect`, an `Access`, which returns the
    connection to the service that it is called with, `inference` or `control`."""

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
        gateway: str | None = None,
        **kwargs: Any,
    ) -> Any:
        given = {"target": target, "control": control_address, "gateway": gateway}
        addresses = {name: address for name, address in given.items() if address}
        chosen = _choose(addresses, data_dir)
        credential = _choose_credential(chosen, api_key, service_token_file)
        if credential is not None and not is_credential(credential):
            text = "The API key, or service token, is empty or has characters that none has."
            raise click.UsageError(text)
        return command(*args, connect=Access(chosen, credential), **kwargs)

    return with_access


def _shared_options(command: Callable[..., Any], service: str) -> Callable[..., Any]:
    @functools.wraps(command)
    def with_connection(*args: Any, connect: Callable[[str], Connection], **kwargs: Any) -> Any:
        return command(*args, **{service: connect(service)}, **kwargs)

    return access_options(with_connection)


def _on_command_line(option: str) -> bool:
    source = click.get_current_context().get_parameter_source(option)
    return source is click.core.ParameterSource.COMMANDLINE


def _choose(addresses: Mapping[str, str], data_dir: Path | None) -> Profile | None:
    """The installation that options, environment and profiles name; None if they name none.
    `addresses` by the fields of a profile; `target` may be the name of one.

    Raises click.ClickException.
    """
    if data_dir is not None:
        if addresses.keys() - {"target"} or (addresses and _on_command_line("target")):
            raise click.UsageError("Give either --data-dir or addresses.")
        return _of_folder(data_dir)
    file = profiles_file()
    if not addresses:
        profiles = Profiles.read(file)
        if profiles.default:
            return profiles.find(profiles.default, file)
        running = read_running(default_data_dir())
        # The owner's token is for who asks for it: other callers keep the key of the environment.
        if running is None:
            return None
        return Profile.model_validate({**running.access, "service_token_file": None})
    target = addresses.get("target", ":")
    if ":" in target:
        return Profile(**addresses)
    others = {name: address for name, address in addresses.items() if name != "target"}
    return Profiles.read(file).find(target, file).model_copy(update=others)


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


def is_credential(text: object) -> bool:
    """Whether a value may be an API key or service token: printable ASCII characters, as in the
    headers that it is sent in."""
    return isinstance(text, str) and re.fullmatch("[ -~]+", text) is not None


def profiles_file() -> Path:
    """The file of profiles: `--profiles` of the whole command, else in the user's configuration."""
    chosen: Path | None = click.get_current_context().find_root().params.get("profiles")
    return chosen or Path(click.get_app_dir("corral")) / "profiles.toml"


def format_time(stamp: Timestamp) -> str:
    """Format a time to the minute, in UTC."""
    return stamp.ToDatetime(UTC).strftime("%Y-%m-%d %H:%M")
