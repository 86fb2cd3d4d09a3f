"""The settings of the gateway."""

import re
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, ClassVar, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from svc_kit.settings.access_settings import AccessSettings
from svc_kit.settings.checks import Problem
from svc_kit.settings.groups import (
    KeyCacheSeconds,
    ListenAddress,
    ReplicaTargets,
    TargetAddress,
    TlsSettings,
    TracingSettings,
    UpstreamTlsSettings,
)

MIB = 1024 * 1024


def _network(text: str) -> str:
    return str(ip_network(text))


_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.ASCII)
_ORIGIN: Final = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:\d+)?/?"
)
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def _host(text: str) -> str:
    if text == "*" or _HOST_NAME.fullmatch(text.removeprefix("*.")):
        return text
    try:
        ip_address(text.strip("[]"))
    except ValueError:
        raise ValueError(
            f"{text!r} is not a host: write its name or IP address without scheme and port, "
            '"*.NAME" for all names that end with it, or "*"'
        ) from None
    return text


def _origin(text: str) -> str:
    if text in ("*", "null"):
        return text
    if not _ORIGIN.fullmatch(text):
        raise ValueError(
            f'{text!r} is not an origin: write https://HOST or https://HOST:PORT, or "*"'
        )
    site = urlsplit(text)
    if site.port is not None and site.port == _DEFAULT_PORTS.get(site.scheme):
        raise ValueError(f"{text!r}: browsers leave out the port {site.port}, so leave it out too")
    return text


class GatewaySettings(AccessSettings):
    toml_table: ClassVar[str] = "gateway"

    listen: ListenAddress = "127.0.0.1:8080"
    """Address of the HTTP listener."""
    management_listen: ListenAddress | None = "127.0.0.1:8081"
    """Address of /metrics, /healthz and /readyz. "none" disables them."""
    tls: TlsSettings | None = None
    """Serve HTTPS instead of HTTP."""
    allowed_hosts: tuple[Annotated[str, AfterValidator(_host)], ...] = ()
    """Additional host names of this server; "*.NAME" allows all that end with it, "*" any. Loopback
    (also names that end with ".localhost") and `listen` are allowed."""
    trusted_proxies: tuple[Annotated[str, AfterValidator(_network)], ...] = ()
    """Networks of proxies, as in 10.0.0.0/8, whose X-Forwarded-For and X-Forwarded-Proto name the
    client. Unset: the client is who connects."""
    allowed_origins: tuple[Annotated[str, AfterValidator(_origin)], ...] = ()
    """Web sites that may call this server, as in https://chat.example; "*" allows any. Loopback is
    allowed."""

    tracing: TracingSettings = TracingSettings()
    """Traces for OpenTelemetry."""

    inference_target: ReplicaTargets = "127.0.0.1:50051"
    """The inference service, host:port; for several replicas "IP:port,IP:port", or
    dns:///name:port, which resolves to all of them."""
    inference_balancer: TargetAddress | None = None
    """host:port of a proxy, such as HAProxy or Envoy, that balances calls over replicas by their
    metadata x-prefix-key; those of operators go to inference_target. Unset: gRPC's own policies
    balance them."""
    inference_tls: UpstreamTlsSettings | None = None
    """TLS to the inference service. Unset: plaintext."""
    control_target: TargetAddress = "127.0.0.1:50052"
    """The control service, host:port, or of several processes gRPC's list, ipv4:IP:port,IP:port.
    While it is unreachable, its routes (files, batches, and so on) return 503, as do requests with
    keys that are not in the settings."""
    control_tls: UpstreamTlsSettings | None = None
    """TLS to the control service. Unset: plaintext."""
    service_token_file: Path | None = None
    """The token that authenticates Corral's services to each other. Unset: API keys of the control
    service are not accepted."""
    key_cache_s: KeyCacheSeconds = 30.0
    """How long key lookups are cached, and so how long a revoked key may still be accepted."""
    request_timeout_s: Annotated[float, Field(gt=0)] = 3600.0
    """Deadline of a generation, including its time in the queue, and of a file transfer."""

    strict_parameters: bool = False
    """Refuse parameters that are otherwise ignored (400), unless the request has the header
    X-Corral-Strict-Parameters: false."""
    body_limit_bytes: Annotated[int, Field(ge=1024, le=1024 * MIB)] = 32 * MIB
    """Maximum size of a request body that is not a form, including pictures and files in base64. A
    larger body gets 413."""
    body_memory_bytes: Annotated[int, Field(ge=2048)] = 512 * MIB
    """Memory for the bodies of more than 256 KiB of all requests, and for the frames of WebSockets
    with more, until their responses have ended; twice `body_limit_bytes` if that is more. A project
    gets at most half of it, and begins four requests that generate at once, with at most an eighth
    of `body_limit_bytes` together or one body: they count until their calls are accepted or have
    run for 0.5 s. Further requests wait, and get 429 after `receive_timeout_s`."""
    receive_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """How long a client may take to send the head of a request, and then its body; for a form with
    a file, how long it may send nothing."""
    min_body_rate: Annotated[int, Field(ge=0)] = 500
    """Minimum speed of a request body in bytes per second, averaged over twice `receive_timeout_s`.
    A slower client gets 408."""
    max_connections_per_address: Annotated[int, Field(ge=1)] | None = 512
    """Maximum number of connections from one IPv4 address or IPv6 /64 network. Further ones get 429
    and are closed. "none" disables the limit, for a proxy in front with more."""
    max_requests: Annotated[int, Field(ge=1)] = 1024
    """Maximum number of concurrent HTTP requests. Further requests get 429, unless their project
    has less than its share: the maximum divided by the number of projects that have requests.
    Until its project is known, a request is refused only beyond twice the maximum."""
    ping_interval_s: Annotated[float, Field(gt=0)] = 15.0
    """Interval of comments in an idle event stream, so that proxies keep it open."""
    unread_limit_s: Annotated[float, Field(gt=0)] = 60.0
    """The connection is closed if the client reads less than about a kilobyte per second of its
    response for this long."""
    websocket_max_age_s: Annotated[float, Field(gt=0)] = 3600.0
    """Maximum age of a WebSocket. Then it sends an error and closes."""
    drain_delay_s: Annotated[float, Field(ge=0)] = 0.0
    """How long requests are still accepted after SIGTERM, while /ready and /readyz are 503 already,
    for load balancers to notice."""
    drain_grace_s: Annotated[float, Field(ge=0)] = 30.0
    """How long running responses may take after that before they end with an error. New requests
    get 503 meanwhile."""

    def find_problems(self) -> Iterator[Problem]:
        """Yield what is wrong with settings together, and with the files that they name."""
        yield from super().find_problems()
        # HTTP callers cannot use the service token.
        yield from self.find_access_problems(
            has_service_token=False, verifies_stored_keys=self.service_token_file is not None
        )
