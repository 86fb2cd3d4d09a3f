"""Groups of settings that services share, and loading of a service's settings."""

import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar, get_args
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from svc_kit.lifecycle import StartupError
from svc_kit.network import parse_address, parse_addresses
from svc_kit.settings.checks import (
    Listener,
    Problem,
    SettingsInvalid,
    describe_setting,
    find_authorities_problem,
    find_exposure,
    find_tls_problem,
)
from svc_kit.settings.docstrings import field_docstrings
from svc_kit.settings.sources import (
    describe_problems,
    find_unknown_variables,
    is_optional,
    merge,
    read_environment,
    read_overrides,
    read_toml,
)


def _unset_none(cls: type[BaseModel], value: Any, info: ValidationInfo) -> Any:
    """Map "none" to None for optional settings: TOML and the environment have no null."""
    field = cls.model_fields[info.field_name or ""]
    return None if value == "none" and is_optional(field.annotation) else value


LogLevel = Annotated[str, Field(pattern=r"^(?i:debug|info|warning|error|critical)$")]


class SettingsGroup(BaseModel):
    """A group of settings, as a field of a service's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    _none_word = field_validator("*", mode="before")(_unset_none)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Describe the fields by their docstrings."""
        written = handler(schema)
        properties = handler.resolve_ref_schema(written).get("properties", {})
        docstrings = dict(field_docstrings(cls))
        for name in properties.keys() & docstrings.keys():
            properties[name]["description"] = docstrings[name]
        return written


class ServiceSettings(SettingsGroup):
    """All settings of one service. Subclasses set `toml_table`."""

    model_config = ConfigDict(validate_default=True)
    toml_table: ClassVar[str]
    """The service's table in a configuration file."""

    log_level: LogLevel = "info"
    """debug, info, warning or error."""

    @classmethod
    def env_prefix(cls) -> str:
        """The prefix of the service's environment variables."""
        return f"CORRAL_{cls.toml_table.upper()}_"

    @property
    def listeners(self) -> list[Listener]:
        names = ("listen", "management_listen")
        texts = {name: text for name in names if (text := getattr(self, name, None))}
        return [
            Listener(self.toml_table, name, parse_address(text)) for name, text in texts.items()
        ]

    def find_problems(self) -> Iterator[Problem]:
        """Yield what is wrong with settings together, and with the files that they name."""
        for name in type(self).model_fields:
            group = getattr(self, name)
            if isinstance(group, TlsSettings | UpstreamTlsSettings):
                for setting, text in group.find_problems():
                    yield self.problem(f"{name}.{setting}", text)

    def problem(self, path: str, text: str) -> Problem:
        """A problem with the setting at a dotted path."""
        return Problem(self.toml_table, f"{describe_setting(self.toml_table, path)}: {text}")


SettingsT = TypeVar("SettingsT", bound=ServiceSettings)


# ---- groups that several services share


def _address(text: str) -> str:
    return str(parse_address(text))


def _existing_file(path: Path) -> Path:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    return path


def _private_file(path: Path) -> Path:
    if exposure := find_exposure(path):
        raise ValueError(exposure)
    return path


def _target(text: str) -> str:
    if text.startswith(_RESOLVERS):
        return text
    if parse_address(text).port == 0:
        raise ValueError(f"{text!r}: clients need the port of the server")
    return text


def _targets(text: str) -> str:
    if text.startswith("dns://") and not text.startswith("dns:///"):
        raise ValueError(
            f"{text!r} names a name server; only the system's is asked: write dns:///NAME:PORT"
        )
    if "," not in text or text.startswith(_RESOLVERS):
        return _target(text)
    addresses = parse_addresses(text)
    for address in addresses:
        _target(str(address))
    return ",".join(map(str, addresses))


_RESOLVERS: Final = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:", "xds:")

ListenAddress = Annotated[str, AfterValidator(_address)]
"""host:port to listen on; port 0 selects a free port."""
TargetAddress = Annotated[str, AfterValidator(_target)]
"""host:port of a gRPC server, or a name with one of gRPC's resolvers, as in dns:///host:port."""
ReplicaTargets = Annotated[str, AfterValidator(_targets)]
"""A `TargetAddress`, or a list "IP:port,IP:port" of replicas."""
ExistingFile = Annotated[Path, AfterValidator(_existing_file)]
PrivateFile = Annotated[ExistingFile, AfterValidator(_private_file)]
"""A file that other users cannot read."""
KeyCacheSeconds = Annotated[float, Field(ge=0, le=30)]
"""How long a verified key of the control service is cached; 0 verifies it at each call."""


class TlsSettings(SettingsGroup):
    certificate_file: ExistingFile
    """PEM: the server's certificate, followed by the intermediate certificates."""
    key_file: PrivateFile
    """PEM: the private key of the certificate. Only this user may read it."""
    client_ca_file: ExistingFile | None = None
    """PEM: the authorities for client certificates. If set, clients must present one (mTLS)."""

    def find_problems(self) -> Iterator[tuple[str, str]]:
        """Yield files that cannot be used: the setting, and what is wrong."""
        if problem := find_tls_problem(self.certificate_file, self.key_file):
            yield problem
        if self.client_ca_file and (text := find_authorities_problem(self.client_ca_file)):
            yield "client_ca_file", text


class ServiceTlsSettings(TlsSettings):
    """TLS of a gRPC service, whose clients may be known by the names in their certificates."""

    client_names: frozenset[str] = frozenset()
    """The only clients that are served: a DNS name or URI that is a subject alternative name of
    their certificates. Empty: all with a certificate of `client_ca_file`."""

    @model_validator(mode="after")
    def _names_are_verified(self) -> Self:
        if self.client_names and self.client_ca_file is None:
            raise ValueError("client_names needs client_ca_file, which verifies the certificates")
        return self


class UpstreamTlsSettings(SettingsGroup):
    """TLS of a connection to another service."""

    ca_file: ExistingFile | None = None
    """PEM: the authorities for the service's certificate. Unset: those of the system."""
    certificate_file: ExistingFile | None = None
    """PEM: the client certificate, if the service requires one (mTLS)."""
    key_file: PrivateFile | None = None
    """PEM: the private key of the certificate. Only this user may read it."""
    server_name: str | None = None
    """The name in the service's certificate if it differs from the host of the target."""

    def find_problems(self) -> Iterator[tuple[str, str]]:
        """Yield files that cannot be used: the setting, and what is wrong."""
        if problem := find_tls_problem(self.certificate_file, self.key_file):
            yield problem
        if self.ca_file and (text := find_authorities_problem(self.ca_file)):
            yield "ca_file", text


ScopeName = Literal["generate", "files", "files_read", "read", "inference", "admin_read", "admin"]
_DEFAULT_SCOPES: Final[Mapping[str, ScopeName]] = {
    f"corral:{name}": name for name in get_args(ScopeName)
}
PROJECT_PATTERN: Final = r"^[!-~]([ -~]{0,253}[!-~])?$"


class KeySettings(SettingsGroup):
    """An API key by its hash. `corral keys create` prints the key and its hash."""

    name: str = Field(min_length=1)
    """The key's name in the log."""
    sha256: SecretStr
    """SHA-256 of the key, 64 hexadecimal digits."""
    project: str = Field("default", pattern=PROJECT_PATTERN)
    """The project of its callers: at most 255 printable ASCII characters."""
    scopes: frozenset[ScopeName] = frozenset({"inference"})
    """What callers may do: "inference" is everything in their project; of that, "generate" calls
    models without stored objects, "files" is files, uploads and vector stores, "files_read" reads
    them, "read" reads all stored objects. "admin" administers the server, "admin_read" reads what
    administrators can."""
    models: frozenset[str] = frozenset()
    """The only models that requests may name. Not with the scope "inference", whose stored objects
    use models later on. Empty: all."""
    networks: frozenset[str] = frozenset()
    """The only networks of callers, as in 10.0.0.0/8 or 192.0.2.7. Empty: all."""
    priority: Literal["interactive", "normal", "batch"] = "normal"
    """Priority class of the requests of its callers."""
    expires_at: datetime | None = None
    """When the key expires; a time without a zone is UTC. Unset: never."""

    @field_validator("sha256")
    @classmethod
    def _is_a_digest(cls, value: SecretStr) -> SecretStr:
        if not re.fullmatch("[0-9a-f]{64}", value.get_secret_value()):
            raise ValueError("must be 64 lower-case hexadecimal digits; see `corral keys create`")
        return value

    @field_validator("networks")
    @classmethod
    def _are_networks(cls, value: frozenset[str]) -> frozenset[str]:
        for network in value:
            ip_network(network)
        return value

    @model_validator(mode="after")
    def _models_fit_scopes(self) -> "KeySettings":
        if self.models and "inference" in self.scopes:
            raise ValueError('models cannot be restricted with the scope "inference"')
        return self

    @field_validator("expires_at")
    @classmethod
    def _has_a_zone(cls, value: datetime | None) -> datetime | None:
        return value.replace(tzinfo=UTC) if value and value.tzinfo is None else value


class IssuerSettings(SettingsGroup):
    """An OpenID Connect issuer whose access tokens (JWTs) are accepted like API keys."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,63}$")
    """The issuer's name in the log, and in front of the subject in ids of keys."""
    issuer: str
    """Its URL, exactly as the claim iss has it; https, or http on loopback."""
    audience: str = Field(min_length=1)
    """The claim aud that tokens for this installation have."""
    jwks_url: str | None = None
    """Where its public keys are. Unset: as its discovery document says."""
    ca_file: ExistingFile | None = None
    """PEM: the authorities for its certificate. Unset: those of the system."""
    algorithms: frozenset[
        Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]
    ] = frozenset({"RS256", "ES256"})
    """The accepted algorithms of signatures."""
    leeway_s: float = Field(30.0, ge=0, le=300)
    """How far the issuer's clock may differ."""
    groups_claim: str = Field("groups", min_length=1)
    """The claim with the caller's groups; nested ones as in realm_access.roles."""
    projects: Mapping[str, Annotated[str, Field(pattern=PROJECT_PATTERN)]] = Field({})
    """The project of each group. The first in this order that the caller has counts."""
    default_project: str | None = Field(None, pattern=PROJECT_PATTERN)
    """The project of callers without such a group. Unset: they are refused."""
    scope_claim: str = Field("scope", min_length=1)
    """The claim with the scopes of the token."""
    scopes: Mapping[str, ScopeName] = Field(_DEFAULT_SCOPES)
    """What each scope of a token permits."""
    default_scopes: frozenset[ScopeName] = frozenset()
    """What every token permits."""
    priority: Literal["interactive", "normal", "batch"] = "normal"
    """Priority class of the requests of its callers."""

    @field_validator("issuer", "jwks_url")
    @classmethod
    def check_url(cls, value: str | None) -> str | None:
        """Return a URL. Raises ValueError unless it is https, or http on loopback."""
        parts = urlsplit(value or "https://unset")
        is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if not parts.hostname or not (
            parts.scheme == "https" or (parts.scheme == "http" and is_local)
        ):
            raise ValueError(f"{value} is not an https URL")
        return value


class ServerSettings(SettingsGroup):
    """Limits of a gRPC server."""

    max_message_bytes: int = Field(64 * 1024 * 1024, ge=64 * 1024, le=1024**3)
    """Maximum size of a response, and of a request with files, pictures or long texts; 4 MiB for
    requests of other methods. Larger ones are rejected."""
    receive_timeout_s: float = Field(60.0, gt=0)
    """How long a client may take to connect, and then to send the message of a call, or the next
    message of an upload."""
    receive_budget_bytes: int = Field(1024**3, ge=1024 * 1024)
    """Memory for messages that take more than 0.1 s to arrive. Each counts with
    `max_message_bytes`, one of an upload with a quarter; a project gets half of the memory. Further
    ones get RESOURCE_EXHAUSTED."""
    max_connections: int = Field(1024, ge=1)
    """Maximum number of connections. While there are more, those of the addresses with most are
    closed, the ones that were silent longest first."""
    max_streams_per_connection: int = Field(2048, ge=1)
    """Maximum number of concurrent calls of a connection. Clients hold back further ones."""
    keepalive_s: float = Field(30.0, gt=0)
    """How often the server pings a silent connection. Clients may ping three times as often."""
    max_connection_age_s: float | None = Field(None, ge=0.1, le=86400)
    """After about this time clients connect again, so that those that resolve a name find new
    replicas. Running calls go on. Unset: connections stay."""
    default_deadline_s: float = Field(600.0, gt=0)
    """Deadline of calls that set none."""
    max_deadline_s: float = Field(3600.0, gt=0)
    """Maximum deadline; a longer one is reduced to this."""
    drain_delay_s: float = Field(0.0, ge=0)
    """How long the server accepts calls after it reports NOT_SERVING, for load balancers to
    notice."""
    drain_grace_s: float = Field(30.0, ge=0)
    """How long running calls may take to finish after SIGTERM."""
    max_concurrent_calls: int | None = Field(None, ge=1)
    """Safety limit above the queue limits; calls beyond it fail without error details."""
    reflection: bool = True
    """Whether to serve gRPC reflection, v1 and v1alpha."""
    channelz: bool = True
    """Whether to serve channelz to callers with the scope admin."""
    vllm_metric_names: bool = False
    """Whether to export also what routers of the Gateway API Inference Extension read, under vLLM's
    names."""


class TracingSettings(SettingsGroup):
    """Traces for OpenTelemetry."""

    endpoint: str | None = Field(None, pattern=r"^(none|https?://[^/\s]+/?)$")
    """OTLP/gRPC address of a collector, as in http://127.0.0.1:4317; https: over TLS. Unset: no
    traces."""
    sample_ratio: float = Field(1.0, ge=0, le=1)
    """The share of traces that are recorded, of those that begin here. A call that brings a trace
    context is recorded if that says so."""
    content: bool = False
    """Whether spans contain prompts, answers, and arguments and results of tools."""


def load_settings(
    cls: type[SettingsT],
    *,
    toml: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> SettingsT:
    """Load the settings of one service: defaults, TOML file, environment, command line.

    Keys of `overrides` (command-line options) may be dotted paths, as in "engine.slots".
    `environment` defaults to that of the process. Raises SettingsInvalid that lists all problems.
    """
    environ = os.environ if environment is None else environment
    shared: list[str] = find_unknown_variables(environ)
    problems: list[str] = []
    sources = [
        read_toml(cls.toml_table, toml, problems, shared),
        read_environment(cls, cls.env_prefix(), environ, problems),
        read_overrides(overrides or {}),
    ]
    merged: dict[str, Any] = {}
    for source in sources:
        merge(merged, source.values)
    try:
        settings = cls(**merged)
    except ValidationError as error:
        problems += describe_problems(cls, error, sources)
    if problems or shared:
        raise SettingsInvalid(
            [*(Problem("", text) for text in shared)]
            + [Problem(cls.toml_table, text) for text in problems]
        )
    return settings


def read_secret(path: Path) -> str:
    """Read a secret from a file, without the line end.

    Raises StartupError if the file is unreadable, empty, or accessible to other users.
    """
    try:
        exposure, text = find_exposure(path), path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise StartupError(f"The secret file {path} cannot be read: {reason}") from error
    if exposure:
        raise StartupError(f"The secret file {exposure}")
    if not text:
        raise StartupError(f"The secret file {path} is empty")
    return text


def default_data_dir(environment: Mapping[str, str] | None = None) -> Path:
    """The data folder: CORRAL_DATA_DIR, else `corral` in the user's XDG data folder."""
    environ = os.environ if environment is None else environment
    if chosen := environ.get("CORRAL_DATA_DIR"):
        return Path(chosen)
    home = environ.get("XDG_DATA_HOME") or Path.home() / ".local/share"
    return Path(home) / "corral"
