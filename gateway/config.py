"""The settings of the gateway."""

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from svc_kit.settings.groups import (
    KeyCacheSeconds,
    KeySettings,
    ListenAddress,
    ServiceSettings,
    TlsSettings,
    UpstreamTlsSettings,
)

MIB = 1024 * 1024


class GatewaySettings(ServiceSettings):
    """All settings of one gateway."""

    model_config = SettingsConfigDict(env_prefix="CORRAL_GATEWAY_")
    toml_table: ClassVar[str] = "gateway"

    listen: ListenAddress = "127.0.0.1:8080"
    """Where HTTP is served."""
    management_listen: ListenAddress | None = "127.0.0.1:8081"
    """Where /metrics, /healthz and /readyz are served. "none": nowhere."""
    tls: TlsSettings | None = None
    """HTTPS instead of HTTP."""
    keys: tuple[KeySettings, ...] = ()
    """The API keys that are accepted. None: keyless, on a loopback address only."""
    allow_keyless: bool = False
    """Serve without keys on an address that other machines reach."""
    require_keys: bool = False
    """Require an API key, also on loopback; keys of `corral keys create` count."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names this server is called by; "*" is any. Loopback and `listen` always are."""
    allowed_origins: tuple[str, ...] = ()
    """Sites whose pages may call it, as in https://chat.example; "*" is any. Loopback always."""

    log_level: str = "info"
    """debug, info, warning or error."""

    inference_target: str = "127.0.0.1:50051"
    """The inference service, host:port."""
    inference_tls: UpstreamTlsSettings | None = None
    """TLS towards it. Unset: plain."""
    control_target: str = "127.0.0.1:50052"
    """The control service, host:port. Without one, files, uploads and batches answer 503, and so do
    callers with a key that is not in the settings."""
    control_tls: UpstreamTlsSettings | None = None
    """TLS towards it. Unset: plain."""
    service_token_file: Path | None = None
    """The token that tells the other services that a service of ours calls. Unset: keys of the
    control service are not accepted."""
    key_cache_s: KeyCacheSeconds = 30.0
    """How long what the control service says of a key counts, and so how long a revoked one may
    still be used."""
    request_timeout_s: Annotated[float, Field(gt=0)] = 3600.0
    """The deadline of one generation, its time in the queue included, and of one file's bytes."""

    body_limit_bytes: Annotated[int, Field(ge=1024, le=1024 * MIB)] = 16 * MIB
    """The largest request body that is no form. A larger one gets 413."""
    receive_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """How long a client may take to send the head of a request, and again for its body; in a form
    with a file, for its next bytes."""
    max_requests: Annotated[int, Field(ge=1)] = 1024
    """How many HTTP requests run at a time. Further ones get 429."""
    ping_interval_s: Annotated[float, Field(gt=0)] = 15.0
    """After this much silence a stream gets a comment, so that proxies keep it open."""
    unread_limit_s: Annotated[float, Field(gt=0)] = 60.0
    """A client that leaves its answer unread for this long, or takes next to nothing of it
    (less than a kilobyte a second), loses the connection."""
    websocket_max_age_s: Annotated[float, Field(gt=0)] = 3600.0
    """How long a WebSocket stays open. Then it sends an error and closes."""
    drain_grace_s: Annotated[float, Field(ge=0)] = 30.0
    """How long running answers may take after SIGTERM before they end with an error."""
