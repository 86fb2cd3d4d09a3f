"""Settings of the control service."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from svc_kit.settings.groups import (
    ExistingFile,
    KeySettings,
    ListenAddress,
    ServerSettings,
    ServiceSettings,
    SettingsGroup,
    TlsSettings,
    UpstreamTlsSettings,
    default_data_dir,
)

MIB = 1024 * 1024


class FileSettings(SettingsGroup):
    """Bounds on files."""

    file_bytes: int = Field(512 * MIB, ge=1)
    """The largest file that is sent in one request."""
    batch_bytes: int = Field(200 * MIB, ge=1)
    """The largest file of purpose batch."""
    upload_bytes: int = Field(8192 * MIB, ge=1)
    """The largest file that is sent in parts."""
    part_bytes: int = Field(64 * MIB, ge=1)
    """The largest part."""


class JobSettings(SettingsGroup):
    """Work in the background."""

    lease_s: float = Field(15.0, gt=0)
    """How long a job waits for a control process that died before another one takes it over."""
    poll_interval_s: float = Field(1.0, gt=0)
    """How often a control process looks for jobs without a notification."""


class AdapterSettings(SettingsGroup):
    """Bounds on registered LoRA adapters."""

    file_bytes: int = Field(2048 * MIB, ge=1)
    """The largest file of an adapter."""
    per_project: int = Field(128, ge=0)
    """How many adapters a project may have."""


class StreamSettings(SettingsGroup):
    """The events of runs and responses."""

    keep_s: float = Field(3600.0, gt=0)
    """How long a stream can still be read once it has ended; its run or response stays."""


class ResponseSettings(SettingsGroup):
    """Responses."""

    keep_s: float = Field(30 * 86_400.0, gt=0)
    """How long a stored response is kept at least; one that others go on from is kept as long as
    they are."""
    at_once: int = Field(256, ge=1)
    """Responses that run at the same time in one control process. The inference service has them
    wait for each other."""
    turn_timeout_s: float = Field(3600.0, gt=0)
    """How long one call of the model may take, waiting included."""
    summary_tokens: int = Field(1024, ge=64)
    """Maximum length of a summary of earlier items, in tokens."""


class BatchSettings(SettingsGroup):
    """Batches: bounds on them, and how much of them runs at a time."""

    lines: int = Field(50_000, ge=1)
    """The most requests of a batch."""
    line_bytes: int = Field(8 * MIB, ge=1024)
    """The longest line of a batch's file."""
    embedding_inputs: int = Field(50_000, ge=1)
    """The most texts that a batch embeds, over all its lines."""
    batches_at_once: int = Field(4, ge=1)
    """Batches that run at the same time in one control process."""
    lines_at_once: int = Field(32, ge=1)
    """Lines that one control process has with the inference service, over all batches. More than it
    has slots, or some are idle; fewer than it takes into its queue, which is for others too."""
    line_timeout_s: float = Field(3600.0, gt=0)
    """How long one line may take, waiting included."""


class VectorStoreSettings(SettingsGroup):
    """Vector stores: bounds on them, and how much of them is read at a time."""

    file_bytes: int = Field(32 * MIB, ge=1)
    """The largest file that is read for search."""
    files_at_once: int = Field(2, ge=1)
    """Files that are read at the same time in one control process."""
    index_bytes: int = Field(256 * MIB, ge=0)
    """Vectors kept in memory, of the stores searched last; a larger store is read through for each
    search. Unused where PostgreSQL has pgvector."""
    call_timeout_s: float = Field(300.0, gt=0)
    """How long a call for vectors may take, waiting included."""


class RunSettings(SettingsGroup):
    """Runs of assistants."""

    runs_at_once: int = Field(32, ge=1)
    """Runs that one control process works on at the same time; the others are queued. More than the
    inference service has slots; fewer than it takes into its queue."""
    expire_after_s: float = Field(600.0, gt=0)
    """How long a run waits for the outputs of its client's functions before it expires."""
    turn_timeout_s: float = Field(3600.0, gt=0)
    """How long one turn of the model may take, waiting included."""


class McpServerSettings(SettingsGroup):
    """A remote server (Model Context Protocol, streamable HTTP) whose tools responses may use."""

    label: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    """By which requests name it: `server_label`."""
    url: str = Field(pattern=r"^https?://[^\s@]+$")
    """Where it is. No other address is ever called."""
    header_files: dict[str, ExistingFile] = Field(default_factory=dict)
    """Headers of each call, by name, each with the file that holds its value: `Authorization`."""
    timeout_s: float = Field(60.0, gt=0)
    """How long one call may take."""
    output_bytes: int = Field(1 * MIB, ge=1024)
    """The longest answer; a longer one is a failed call."""


class ControlSettings(ServiceSettings):
    """Settings of the control service."""

    model_config = SettingsConfigDict(env_prefix="CORRAL_CONTROL_")
    toml_table: ClassVar[str] = "control"

    listen: ListenAddress = "127.0.0.1:50052"
    """Where gRPC is served."""
    management_listen: ListenAddress | None = "127.0.0.1:50062"
    """Where /metrics, /healthz and /readyz are served. "none": nowhere."""
    data_dir: Path = Field(default_factory=default_data_dir)
    """The bytes of files and the database are kept here, in control/, unless they have a URL."""
    database_url: SecretStr | None = None
    """postgresql://user:password@host/name, or sqlite:///FILE. Unset: SQLite in data_dir."""
    blobs_url: str | None = None
    """s3://BUCKET/PREFIX?endpoint=URL&region=NAME: where the bytes of files are kept. Unset: in
    data_dir."""
    blobs_access_key_id: SecretStr | None = None
    """Of the bucket. Unset: the usual AWS_ variables, or the machine's role."""
    blobs_secret_access_key: SecretStr | None = None
    """The secret of that key."""
    inference_target: str = "127.0.0.1:50051"
    """host:port of the inference service, which runs what batches ask for."""
    inference_tls: UpstreamTlsSettings | None = None
    """Call the inference service over TLS."""
    auto_migrate: bool | None = None
    """Bring the database to this release's schema at the start. Unset: on SQLite only."""
    sweep_interval_s: float = Field(300.0, gt=0)
    """How often what has expired, and bytes that belong to nothing, are removed."""
    keys: list[KeySettings] = Field(default_factory=list)
    """API keys that are accepted."""
    service_token_file: Path | None = None
    """The installation's own credential, which the gateway presents."""
    allow_keyless: bool = False
    """Serve without keys beyond the loopback interface."""
    require_keys: bool = False
    """Require an API key, also on loopback; keys of `corral keys create` count."""
    tls: TlsSettings | None = None
    """Serve over TLS."""
    log_level: str = "info"
    """debug, info, warning or error."""
    files: FileSettings = FileSettings()
    """Bounds on files."""
    jobs: JobSettings = JobSettings()
    """Work in the background."""
    adapters: AdapterSettings = AdapterSettings()
    """Bounds on registered LoRA adapters."""
    adapter_folders: list[Path] = Field([])
    """Where files may lie that an operator registers by their path, beside the data folder's
    "adapters"."""
    batches: BatchSettings = BatchSettings()
    """Batches."""
    responses: ResponseSettings = ResponseSettings()
    """Responses."""
    streams: StreamSettings = StreamSettings()
    """The events of runs and responses."""
    embedding_model: str | None = None
    """The model by which files in vector stores are searched, as the inference service calls it.
    Unset: none can be."""
    vector_stores: VectorStoreSettings = VectorStoreSettings()
    """Vector stores."""
    mcp_servers: list[McpServerSettings] = Field(default_factory=list)
    """Remote servers whose tools responses may use; requests cannot name others."""
    runs: RunSettings = RunSettings()
    """Runs of assistants."""
    server: ServerSettings = ServerSettings()
    """The gRPC server."""
