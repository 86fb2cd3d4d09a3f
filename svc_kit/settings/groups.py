"""Groups of settings that services share, and the loading of a service's frozen settings class."""

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from svc_kit.lifecycle import StartupError
from svc_kit.network import parse_address
from svc_kit.settings.sources import (
    explain,
    may_be_none,
    merge,
    read_environment,
    read_overrides,
    read_toml,
)


def _unset_none(cls: type[BaseModel], value: Any, info: ValidationInfo) -> Any:
    """TOML and the environment have no null; "none" unsets an optional setting."""
    field = cls.model_fields[info.field_name or ""]
    return None if value == "none" and may_be_none(field.annotation) else value


class SettingsGroup(BaseModel):
    """A few settings that belong together; services compose their class from groups."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
    _none_word = field_validator("*", mode="before")(_unset_none)


class ServiceSettings(BaseSettings):
    """All settings of one service. Subclasses set `env_prefix` and `toml_table`."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,  # docs/reference/configuration.md is made from them
        env_nested_delimiter="__",
        case_sensitive=False,
    )
    _none_word = field_validator("*", mode="before")(_unset_none)
    toml_table: ClassVar[str]
    """The service's table in a configuration file."""

    @classmethod
    def env_prefix(cls) -> str:
        """What the names of the service's environment variables begin with."""
        return cls.model_config.get("env_prefix", "")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read only constructor arguments; `load_settings` gathers the other sources."""
        return (init_settings,)


SettingsT = TypeVar("SettingsT", bound=ServiceSettings)


# ---- groups that several services share


def _address(text: str) -> str:
    return str(parse_address(text))


def _existing_file(path: Path) -> Path:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    return path


ListenAddress = Annotated[str, AfterValidator(_address)]
"""host:port to listen on; port 0 lets the system choose."""
ExistingFile = Annotated[Path, AfterValidator(_existing_file)]
KeyCacheSeconds = Annotated[float, Field(ge=0, le=30)]
"""How long an answer of the control service about a key counts; 0 asks each time."""


class TlsSettings(SettingsGroup):
    """A server over TLS: its certificate, and whose certificates it asks clients for."""

    certificate_file: ExistingFile
    """PEM: the server's certificate, followed by those between it and the root."""
    key_file: ExistingFile
    """PEM: the private key of the certificate."""
    client_ca_file: ExistingFile | None = None
    """PEM: who may sign clients' certificates. Set: a client without one is refused (mTLS)."""


class UpstreamTlsSettings(SettingsGroup):
    """TLS towards another service of ours."""

    ca_file: ExistingFile | None = None
    """PEM: who may sign the service's certificate. Unset: the system's authorities."""
    certificate_file: ExistingFile | None = None
    """PEM: our own certificate, where the service asks for one (mTLS)."""
    key_file: ExistingFile | None = None
    """PEM: the private key of the certificate."""
    server_name: str | None = None
    """The name in the service's certificate where it is not the host of its target."""


class KeySettings(SettingsGroup):
    """One API key, known by its hash; `corral keys create` prints both."""

    name: str = Field(min_length=1)
    """What the log calls it."""
    sha256: SecretStr
    """SHA-256 of the key, 64 hexadecimal digits."""
    project: str = Field("default", pattern=r"^[!-~]([ -~]{0,253}[!-~])?$")
    """Whose objects its callers see: at most 255 printable ASCII characters, for metadata."""
    scopes: frozenset[Literal["inference", "admin"]] = frozenset({"inference"})
    priority: Literal["interactive", "normal", "batch"] = "normal"
    expires_at: datetime | None = None
    """From then on the key is refused; a time without a zone is UTC. Unset: never."""

    @field_validator("sha256")
    @classmethod
    def _is_a_digest(cls, value: SecretStr) -> SecretStr:
        if not re.fullmatch("[0-9a-f]{64}", value.get_secret_value()):
            raise ValueError("must be 64 lower-case hexadecimal digits; see `corral keys create`")
        return value

    @field_validator("expires_at")
    @classmethod
    def _has_a_zone(cls, value: datetime | None) -> datetime | None:
        return value.replace(tzinfo=UTC) if value and value.tzinfo is None else value


class ServerSettings(SettingsGroup):
    """Limits of a gRPC server."""

    max_message_bytes: int = Field(32 * 1024 * 1024, ge=64 * 1024, le=1024**3)
    """The largest request or response. A larger one ends with RESOURCE_EXHAUSTED."""
    default_deadline_s: float = Field(600.0, gt=0)
    """The deadline of a call whose caller sets none."""
    max_deadline_s: float = Field(3600.0, gt=0)
    """A caller's deadline beyond this counts as this."""
    drain_delay_s: float = Field(0.0, ge=0)
    """How long the server still takes calls after it turned NOT_SERVING, so that balancers see
    it."""
    drain_grace_s: float = Field(30.0, ge=0)
    """How long running calls may take to finish after SIGTERM."""
    max_concurrent_calls: int | None = Field(None, ge=1)
    """A last resort above the bounds of admission; calls above it fail without details."""
    reflection: bool = True
    """Whether callers may list services and messages (gRPC reflection v1 and v1alpha)."""
    channelz: bool = True
    """Whether callers with the scope admin may see connections (channelz)."""
    vllm_metric_names: bool = False
    """Whether three gauges appear under vLLM's names too, for routers that look for those."""


# ---- loading and showing


def load_settings(
    cls: type[SettingsT],
    *,
    toml: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> SettingsT:
    """Gather the settings of one service.

    `overrides` are the flags that were given; a key may be a dotted path, as in "engine.slots".
    `environment` is the process's unless given. Raises StartupError that lists every problem of
    every source.
    """
    environ = os.environ if environment is None else environment
    problems: list[str] = []
    sources = [
        read_toml(cls.toml_table, toml, problems),
        read_environment(cls, cls.env_prefix(), environ, problems),
        read_overrides(overrides or {}),
    ]
    merged: dict[str, Any] = {}
    for source in sources:
        merge(merged, source.values)
    try:
        settings = cls(**merged)
    except ValidationError as error:
        problems += explain(cls, error, sources)
    if problems:
        head = f"The {cls.toml_table} settings have {len(problems)} problem(s):"
        raise StartupError("\n  - ".join([head, *problems]))
    return settings


def describe(settings: ServiceSettings) -> str:
    """The settings in force as a TOML document, with every secret hidden."""
    return "\n".join(_toml_lines(settings, settings.toml_table)) + "\n"


def _toml_lines(group: BaseModel, table: str) -> Iterator[str]:
    yield f"[{table}]"
    values = {name: getattr(group, name) for name in type(group).model_fields}
    for name, value in values.items():
        if not isinstance(value, BaseModel):
            yield f"{name} = {_toml_value(value)}"
    for name, value in values.items():
        if isinstance(value, BaseModel):
            yield ""
            yield from _toml_lines(value, f"{table}.{name}")


def _toml_value(value: Any) -> str:
    if isinstance(value, BaseModel):
        value = {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        pairs = [f"{name} = {_toml_value(v)}" for name, v in value.items()]
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, set | frozenset):
        value = sorted(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return json.dumps("none" if value is None else str(value), ensure_ascii=False)


def read_secret(path: Path) -> str:
    """The secret in a file, without the line end.

    Raises StartupError where the file cannot be read, is empty, or others than its owner can
    read it.
    """
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise StartupError(f"The secret file {path} cannot be read: {reason}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise StartupError(f"Others can read the secret file {path}; run: chmod 600 {path}")
    if not text:
        raise StartupError(f"The secret file {path} is empty")
    return text


def default_data_dir(environment: Mapping[str, str] | None = None) -> Path:
    """Where Corral keeps its data: CORRAL_DATA_DIR, else a folder of the user's (XDG)."""
    environ = os.environ if environment is None else environment
    if chosen := environ.get("CORRAL_DATA_DIR"):
        return Path(chosen)
    home = environ.get("XDG_DATA_HOME") or Path.home() / ".local/share"
    return Path(home) / "corral"
