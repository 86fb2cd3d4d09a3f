"""Settings of the control service."""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, ClassVar, Final, Self

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from svc_kit.network import parse_address
from svc_kit.settings.access_settings import AccessSettings
from svc_kit.settings.checks import Problem
from svc_kit.settings.groups import (
    ExistingFile,
    ListenAddress,
    ReplicaTargets,
    ServerSettings,
    ServiceTlsSettings,
    SettingsGroup,
    TargetAddress,
    TracingSettings,
    UpstreamTlsSettings,
    default_data_dir,
)

MIB = 1024 * 1024


def _syslog_target(text: str) -> str:
    if not text.startswith("/"):
        parse_address(text)
    return text


class FileSettings(SettingsGroup):
    """Limits of files."""

    file_bytes: int = Field(512 * MIB, ge=1)
    """Maximum size of a file that is sent in one request."""
    batch_bytes: int = Field(200 * MIB, ge=1)
    """Maximum size of a file of purpose batch."""
    upload_bytes: int = Field(8192 * MIB, ge=1)
    """Maximum size of a file that is uploaded in parts."""
    part_bytes: int = Field(64 * MIB, ge=1)
    """Maximum size of a part."""


class JobSettings(SettingsGroup):
    lease_s: float = Field(15.0, gt=0)
    """Time after which the job of a killed control process is taken over by another one."""
    poll_interval_s: float = Field(1.0, gt=0)
    """Interval at which a control process polls for jobs, in case a notification is lost."""


class AdapterSettings(SettingsGroup):
    """Limits of registered LoRA adapters."""

    file_bytes: int = Field(2048 * MIB, ge=1)
    """Maximum size of an adapter file."""
    per_project: int = Field(128, ge=0)
    """Maximum number of adapters of a project."""


class StreamSettings(SettingsGroup):
    keep_s: float = Field(3600.0, gt=0)
    """How long the events of a finished run or response can be read."""


class ResponseSettings(SettingsGroup):
    keep_s: float = Field(30 * 86_400.0, gt=0)
    """Minimum time for which a response is stored; one that later responses continue is stored as
    long as they are."""
    at_once: int = Field(256, ge=1)
    """Maximum number of responses that run at the same time in one control process. The inference
    service queues them."""
    turn_timeout_s: float = Field(3600.0, gt=0)
    """Timeout of a call of the model, queueing included."""
    summary_tokens: int = Field(1024, ge=64)
    """Maximum length of a summary of earlier items, in tokens."""


class BatchSettings(SettingsGroup):
    """Limits and concurrency of batches."""

    lines: int = Field(50_000, ge=1)
    """Maximum number of requests in a batch."""
    line_bytes: int = Field(8 * MIB, ge=1024)
    """Maximum length of a line in the file of a batch."""
    embedding_inputs: int = Field(50_000, ge=1)
    """Maximum number of texts that a batch embeds, over all its lines."""
    batches_at_once: int = Field(4, ge=1)
    """Maximum number of batches that run at the same time in one control process."""
    lines_at_once: int = Field(32, ge=1)
    """Maximum number of lines that one control process runs at the same time, over all batches.
    Should be more than the slots of the inference service, and less than its queue length."""
    line_timeout_s: float = Field(3600.0, gt=0)
    """Timeout of a line, queueing included."""


class VectorStoreSettings(SettingsGroup):
    """Limits and concurrency of vector stores."""

    file_bytes: int = Field(32 * MIB, ge=1)
    """Maximum size of a file in a vector store."""
    files_at_once: int = Field(2, ge=1)
    """Maximum number of files that are ingested at the same time in one control process."""
    file_timeout_s: float = Field(21_600.0, gt=0)
    """Maximum time of one file in ingestion, without the time that it waits for its turn. One that
    takes longer fails. An attempt that continues another one begins anew."""
    index_bytes: int = Field(256 * MIB, ge=0)
    """Size of the cache of vectors in memory. A store that does not fit is read from the database
    for each search. Unused with pgvector."""
    call_timeout_s: float = Field(300.0, gt=0)
    """Timeout of an embedding call, queueing included."""


class RunSettings(SettingsGroup):
    runs_at_once: int = Field(32, ge=1)
    """Maximum number of runs that are processed at the same time in one control process. Should be
    more than the slots of the inference service, and less than its queue length."""
    expire_after_s: float = Field(600.0, gt=0)
    """How long a run waits for the outputs of client functions before it expires."""
    turn_timeout_s: float = Field(3600.0, gt=0)
    """Timeout of a call of the model, queueing included."""


_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE: Final = re.compile(r"[ -~]+")


class McpServerSettings(SettingsGroup):
    """A remote server (Model Context Protocol, streamable HTTP) whose tools responses may use."""

    label: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    """The `server_label` in requests."""
    url: str = Field(pattern=r"^https?://[^\s@]+$")
    """URL of the server. No other address is called."""
    header_files: dict[str, ExistingFile] = Field(default_factory=dict)
    """Headers of each call: name, such as `Authorization`, and the file with the value."""
    timeout_s: float = Field(60.0, gt=0)
    """Timeout of a call."""
    output_bytes: int = Field(1 * MIB, ge=1024)
    """Maximum size of a result; a call with a larger one fails."""

    @model_validator(mode="after")
    def _headers_are_valid(self) -> Self:
        self.read_headers()
        return self

    def read_headers(self) -> Mapping[str, str]:
        """Read the values of the headers. Raises ValueError for one that is invalid: it would fail,
        and appear in an error message, at each call.
        """
        return {name: _read_header(name, file) for name, file in self.header_files.items()}


def _read_header(name: str, file: Path) -> str:
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"header_files: {name!r} is not a valid header name")
    try:
        value = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"header_files: {name!r}: {error}") from error
    if not _HEADER_VALUE.fullmatch(value):
        raise ValueError(
            f"header_files: {name!r}: its file must contain one line of printable ASCII"
        )
    return value


class PriceSettings(SettingsGroup):
    """The price of a model, for a million tokens, in a currency of your choice."""

    prompt: Decimal = Field(Decimal(0), ge=0, le=1_000_000)
    """Price of prompt tokens."""
    cached: Decimal | None = Field(None, ge=0, le=1_000_000)
    """Price of prompt tokens that are cached. Unset: as other prompt tokens."""
    completion: Decimal = Field(Decimal(0), ge=0, le=1_000_000)
    """Price of generated tokens."""


class ControlSettings(AccessSettings):
    toml_table: ClassVar[str] = "control"

    listen: ListenAddress = "127.0.0.1:50052"
    """Address of the gRPC server."""
    management_listen: ListenAddress | None = "127.0.0.1:50062"
    """Address of /metrics, /healthz and /readyz. "none" disables them."""
    data_dir: Path = Field(default_factory=default_data_dir)
    """Data folder; control/ in it has the database and the files, unless they have a URL."""
    database_url: SecretStr | None = None
    """postgresql://user:password@host/name, or sqlite:///FILE. Unset: SQLite in data_dir."""
    blobs_url: str | None = None
    """Bucket for the contents of files: s3://BUCKET/PREFIX?endpoint=URL&region=NAME. Unset: they
    are in data_dir."""
    blobs_access_key_id: SecretStr | None = None
    """Access key id of the bucket. Unset: the AWS_ variables, or the role of the machine."""
    blobs_secret_access_key: SecretStr | None = None
    """Secret access key of the bucket."""
    inference_target: ReplicaTargets = "127.0.0.1:50051"
    """The inference service, host:port; for several replicas "IP:port,IP:port", or
    dns:///name:port, which resolves to all of them."""
    inference_balancer: TargetAddress | None = None
    """host:port of a proxy, such as HAProxy or Envoy, that balances calls over replicas by their
    metadata x-prefix-key; those of operators go to inference_target. Unset: gRPC's own policies
    balance them."""
    inference_tls: UpstreamTlsSettings | None = None
    """Call the inference service over TLS."""
    auto_migrate: bool | None = None
    """Upgrade the database schema at startup. Unset: on SQLite only."""
    sweep_interval_s: float = Field(300.0, gt=0)
    """Interval at which expired objects and unreferenced files are deleted."""
    service_token_file: Path | None = None
    """File of the service token, which the gateway also has."""
    tls: ServiceTlsSettings | None = None
    """Serve over TLS."""
    audit_syslog: Annotated[str, AfterValidator(_syslog_target)] | None = None
    """Send the audit log to syslog too: the path of its socket, such as /dev/log, or host:port
    (UDP)."""
    tracing: TracingSettings = TracingSettings()
    """Traces for OpenTelemetry."""
    files: FileSettings = FileSettings()
    """Limits of files."""
    jobs: JobSettings = JobSettings()
    """Background jobs."""
    adapters: AdapterSettings = AdapterSettings()
    """Limits of registered LoRA adapters."""
    adapter_folders: list[Path] = Field([])
    """Folders of adapter files that operators may register by path, beside "adapters" in
    data_dir."""
    batches: BatchSettings = BatchSettings()
    """Batches."""
    responses: ResponseSettings = ResponseSettings()
    """Responses."""
    streams: StreamSettings = StreamSettings()
    """Event streams of runs and responses."""
    embedding_model: str | None = None
    """Name of the embedding model of vector stores in the inference service. Unset: files cannot be
    searched."""
    vector_stores: VectorStoreSettings = VectorStoreSettings()
    """Vector stores."""
    mcp_servers: list[McpServerSettings] = Field(default_factory=list)
    """Remote MCP servers whose tools responses may use."""
    runs: RunSettings = RunSettings()
    """Runs of assistants."""
    prices: dict[str, PriceSettings] = Field(default_factory=dict)
    """Prices by model or adapter, for the cost of usage and for budgets; `*` for all others."""
    server: ServerSettings = ServerSettings()
    """The gRPC server."""

    @field_validator("database_url")
    @classmethod
    def _is_a_database_url(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            # SQLAlchemy is imported where it is needed, because that takes half a second.
            from control_svc.urls import parse_database_url

            parse_database_url(value.get_secret_value())
        return value

    @field_validator("blobs_url")
    @classmethod
    def _is_a_bucket(cls, value: str | None) -> str | None:
        if value is not None:
            from control_svc.urls import parse_bucket_url

            parse_bucket_url(value)
        return value

    @field_validator("mcp_servers")
    @classmethod
    def _labels_differ(cls, value: list[McpServerSettings]) -> list[McpServerSettings]:
        labels = [server.label for server in value]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"the label {label!r} is used twice")
        return value

    def find_problems(self) -> Iterator[Problem]:
        """Yield what is wrong with settings together, and with the files that they name."""
        yield from super().find_problems()
        yield from self.find_access_problems(has_service_token=self.service_token_file is not None)
        key = {"blobs_access_key_id", "blobs_secret_access_key"}
        missing = {name for name in key if getattr(self, name) is None}
        if len(missing) == 1:
            (unset,), (given,) = missing, key - missing
            yield self.problem(given, f"{unset} belongs to it: set both, or neither")
