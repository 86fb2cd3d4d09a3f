"""gRPC channels: flow control, TLS, retries, and translation of statuses to DomainErrors."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import grpc

from svc_kit.errors.status import from_rpc_error
from svc_kit.settings.groups import UpstreamTlsSettings

WINDOW_BYTES: Final = 1024 * 1024
WINDOW_OPTIONS: Final = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
)
"""Of every server and every channel; a message that is larger is taken all the same."""


MAX_MESSAGE_BYTES: Final = 32 * 1024 * 1024
"""The largest message either side takes by default: a window of token ids, or an image."""
_RETRIES: Final = {
    "methodConfig": [
        {
            # Every method. Only calls that the server has not admitted are tried again: initial
            # metadata, sent at admission, commits a call.
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 3,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 3,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
    # A server that is down is not asked three times by everyone: half the tokens gone, no retries.
    "retryThrottling": {"maxTokens": 20, "tokenRatio": 0.5},
}
Option = tuple[str, int | str]


@dataclass(frozen=True, kw_only=True)
class ClientTls:
    """Files for a channel over TLS; certificate and key only where the server asks for them
    (mTLS)."""

    ca_file: Path | None = None
    """PEM certificates that may sign the server's. None: those of the system."""
    certificate_file: Path | None = None
    key_file: Path | None = None
    server_name: str | None = None
    """The name in the server's certificate where it is not the host of the target."""

    @classmethod
    def of(cls, settings: UpstreamTlsSettings | None) -> Self | None:
        """The TLS of a service's settings; None means plain text."""
        if settings is None:
            return None
        return cls(
            ca_file=settings.ca_file,
            certificate_file=settings.certificate_file,
            key_file=settings.key_file,
            server_name=settings.server_name,
        )


def channel_options(*, max_message_bytes: int = MAX_MESSAGE_BYTES) -> list[Option]:
    """The options of every channel of ours; times in milliseconds are gRPC's."""
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        # A long prefill is silent. Pings tell a dead peer from a busy one within 40 s.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        # Shorter than the retries above wait together, so that a service that is back is found by
        # the first call after that: gRPC's own second would refuse it.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 200),
        ("grpc.enable_retries", 1),
        ("grpc.service_config", json.dumps(_RETRIES)),
        *WINDOW_OPTIONS,
    ]


def open_channel(
    target: str,
    *,
    token: str | None = None,
    tls: ClientTls | None = None,
    options: Sequence[Option] = (),
) -> grpc.aio.Channel:
    """Open a channel to `target` ("host:port"); the connection is made by the first call.

    `token` goes as "Bearer" with every call: an API key or a service token. `options` come after
    ours, so they win. Raises OSError when a TLS file cannot be read. Close the channel with `await
    channel.close()`.
    """
    merged = {**dict(channel_options()), **dict(options)}
    if tls is None:
        channel = grpc.aio.insecure_channel(target, options=list(merged.items()))
    else:
        if tls.server_name is not None:
            merged["grpc.ssl_target_name_override"] = tls.server_name
        channel = grpc.aio.secure_channel(target, _credentials(tls), options=list(merged.items()))
    return channel if token is None else _TokenChannel(channel, token)


@contextmanager
def translate_errors(service: str = "upstream") -> Iterator[None]:
    """Turn a failed call inside the block into the DomainError that the server raised.

    Works around a unary call and around a whole stream. `service` names the callee where it cannot
    be reached.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error, service) from error


def _credentials(tls: ClientTls) -> grpc.ChannelCredentials:
    def read(path: Path | None) -> bytes | None:
        return None if path is None else path.read_bytes()

    return grpc.ssl_channel_credentials(
        root_certificates=read(tls.ca_file),
        private_key=read(tls.key_file),
        certificate_chain=read(tls.certificate_file),
    )


class _TokenChannel(grpc.aio.Channel):
    """A channel that sends one credential with every call."""

    def __init__(self, channel: grpc.aio.Channel, token: str) -> None:
        self._channel = channel
        self._metadata = (("authorization", f"Bearer {token}"),)

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_token(self._channel.unary_unary(*args, **kwargs))

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_token(self._channel.unary_stream(*args, **kwargs))

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_token(self._channel.stream_unary(*args, **kwargs))

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_token(self._channel.stream_stream(*args, **kwargs))

    def _with_token(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def begin(*args: Any, metadata: Any = None, **kwargs: Any) -> Any:
            return call(*args, metadata=(*self._metadata, *(metadata or ())), **kwargs)

        return begin

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._channel.close()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()
