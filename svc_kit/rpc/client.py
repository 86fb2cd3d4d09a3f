"""gRPC channels: flow control, TLS, retries, and translation of statuses to DomainErrors."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from svc_kit.auth.scopes import method_path
from svc_kit.errors.status import from_rpc_error
from svc_kit.settings.groups import UpstreamTlsSettings

WINDOW_BYTES: Final = 1024 * 1024
"""HTTP/2 flow control of channels, and of servers that receive files. Messages may be larger than
the window."""
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""The default limit of messages, enough for a full context of token ids, or 50 MB of images."""
RETRIES: Final = {
    "methodConfig": [
        {
            # All methods. gRPC retries no call whose initial metadata was received, and servers
            # send it on admission.
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 3,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 3,
                # A server that shuts down cancels what it has received and not accepted.
                "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
            },
        }
    ],
    # Stops retries while half of the tokens are used up, so as not to overload a failing server.
    "retryThrottling": {"maxTokens": 20, "tokenRatio": 0.5},
}
Option = tuple[str, int | str]
ReplyT = TypeVar("ReplyT", bound=Message)


def window_options(window_bytes: int) -> tuple[tuple[str, int], ...]:
    """The options of a flow control window of constant size."""
    return ("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", window_bytes)


def channel_options(*, max_message_bytes: int = MAX_MESSAGE_BYTES) -> list[Option]:
    """The options of all our channels."""
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        # A long prefill sends nothing. Pings detect a dead peer within 40 s.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),  # by default a minute, which replaces the above
        ("grpc.http2.max_pings_without_data", 0),
        # Shorter than the retries above take in total, so that the first call after a restart of
        # the service succeeds; with gRPC's default of 1 s it would fail.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 200),
        ("grpc.enable_retries", 1),
        ("grpc.service_config", json.dumps(RETRIES)),
        *window_options(WINDOW_BYTES),
    ]


def open_channel(
    target: str,
    *,
    token: str | None = None,
    tls: UpstreamTlsSettings | None = None,
    options: Sequence[Option] = (),
) -> grpc.aio.Channel:
    """Open a channel to `target` ("host:port"), which connects at the first call.

    `token` is an API key or service token, sent with every call. `tls` None means plaintext.
    `options` override the defaults. Raises OSError if a TLS file cannot be read. The caller closes
    the channel.
    """
    merged = {**dict(channel_options()), **dict(options)}
    if tls is None:
        channel = grpc.aio.insecure_channel(target, options=list(merged.items()))
    else:
        if tls.server_name is not None:
            merged["grpc.ssl_target_name_override"] = tls.server_name
        channel = grpc.aio.secure_channel(target, _credentials(tls), options=list(merged.items()))
    return channel if token is None else _TokenChannel(channel, token)


def method_of(request: type[Message]) -> MethodDescriptor:
    """The method with this type of request, which belongs to no other."""
    descriptor: Any = request.DESCRIPTOR
    services = descriptor.file.services_by_name.values()
    methods = (method for service in services for method in service.methods)
    found: MethodDescriptor = next(each for each in methods if each.input_type is descriptor)
    return found


def open_method(channel: grpc.aio.Channel, request: type[Message]) -> Callable[..., Any]:
    """The callable of the method with this type of request, as generated stubs have it."""
    method = method_of(request)
    sides = (method.client_streaming, method.server_streaming)
    kind = "_".join("stream" if is_stream else "unary" for is_stream in sides)
    opened: Callable[..., Any] = getattr(channel, kind)(
        method_path(method),
        request_serializer=request.SerializeToString,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    return opened


async def call_unary(
    method: Callable[..., Any], request: Message, reply: type[ReplyT], **options: Any
) -> ReplyT:
    """Call a unary method. Raises gRPC's errors, and TypeError if the reply has another type."""
    answer = await method(request, **options)
    if not isinstance(answer, reply):
        raise TypeError(f"the reply is a {type(answer).__name__}")
    return answer


@contextmanager
def translate_errors(service: str = "upstream") -> Iterator[None]:
    """Turn a failed call (unary or streaming) in the block into the server's DomainError.

    `service` is the callee's name in the error if it cannot be reached.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error, service) from error


def _credentials(tls: UpstreamTlsSettings) -> grpc.ChannelCredentials:
    def read(path: Path | None) -> bytes | None:
        return None if path is None else path.read_bytes()

    return grpc.ssl_channel_credentials(
        root_certificates=read(tls.ca_file),
        private_key=read(tls.key_file),
        certificate_chain=read(tls.certificate_file),
    )


class _TokenChannel(grpc.aio.Channel):
    """A channel that sends a bearer token with every call."""

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
        def start(*args: Any, metadata: Any = None, **kwargs: Any) -> Any:
            return call(*args, metadata=(*self._metadata, *(metadata or ())), **kwargs)

        return start

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
