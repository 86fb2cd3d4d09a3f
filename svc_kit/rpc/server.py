"""A gRPC server with interceptors, health, reflection (v1 and v1alpha), channelz and drain."""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import grpc
from corral.error.v1 import error_reason_pb2
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from google.protobuf.descriptor import FileDescriptor
from grpc_channelz.v1 import channelz  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection_pb2  # type: ignore[import-untyped]
from grpc_reflection.v1alpha.reflection import aio  # type: ignore[import-untyped]
from prometheus_client import CollectorRegistry

from svc_kit.auth.authenticator import Authenticator
from svc_kit.auth.scopes import check_scopes
from svc_kit.certificates import ServerCertificate
from svc_kit.connection_watch import SPARE, watch_connections
from svc_kit.lifecycle import StartupError
from svc_kit.metrics import RpcMetrics
from svc_kit.network import Address, allow_open_files, open_listener, parse_address
from svc_kit.rpc.admin_call import RecordCall
from svc_kit.rpc.client import window_options
from svc_kit.rpc.health import SERVICE_NAME as HEALTH
from svc_kit.rpc.health import HealthServicer
from svc_kit.rpc.interceptors import MapError, RpcInterceptor
from svc_kit.rpc.method_server import MethodServer
from svc_kit.rpc.request_reader import HARD_LIMIT_MARGIN
from svc_kit.settings.groups import ServerSettings, ServiceTlsSettings
from svc_kit.tracing.span import Tracer

_log = logging.getLogger(__name__)
CHANNELZ: Final = "grpc.channelz.v1.Channelz"
V1ALPHA: Final = "grpc.reflection.v1alpha.ServerReflection"
V1: Final = "grpc.reflection.v1.ServerReflection"
_METHOD: Final = "ServerReflectionInfo"
ERRORS: Final = error_reason_pb2.DESCRIPTOR
"""The reasons of errors. No message refers to them; reflection finds what is imported."""


def add_reflection(server: grpc.aio.Server, service_names: Sequence[str]) -> None:
    """Add reflection, v1 and v1alpha, for the named services."""
    _register_v1()
    servicer = aio.ReflectionServicer([*service_names, V1, V1ALPHA], pool=_MethodFindingPool())
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for name in (V1, V1ALPHA):
        server.add_registered_method_handlers(name, {_METHOD: handler})


class _MethodFindingPool:
    """The default descriptor pool, in which methods are symbols too, for `grpcurl describe`."""

    def __init__(self) -> None:
        self._pool = descriptor_pool.Default()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:
        """Find the file of a message, enum, service or method. Raises KeyError."""
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            return self._pool.FindMethodByName(symbol).containing_service.file


def _register_v1() -> None:
    file = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    text = text_format.MessageToString(file).replace("v1alpha", "v1")
    copy = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    descriptor_pool.Default().AddSerializedFile(copy.SerializeToString())


class Service(NamedTuple):
    add: Callable[[Any, grpc.aio.Server], None]
    """The generated `add_XServicer_to_server`."""
    servicer: Any
    full_name: str
    """As in "package.Service"."""


class RpcServer:
    """Serves gRPC services on one address."""

    def __init__(
        self,
        services: Sequence[Service],
        *,
        listen: str,
        authenticator: Authenticator,
        registry: CollectorRegistry,
        settings: ServerSettings | None = None,
        tls: ServiceTlsSettings | None = None,
        window_bytes: int = 64 * 1024,
        tracer: Tracer | None = None,
        record_call: RecordCall | None = None,
        map_error: MapError | None = None,
    ) -> None:
        """`window_bytes`: what a client may send of a message before it is read. `record_call` and
        `map_error` are as in `RpcInterceptor`."""
        self._services = services
        self._window_bytes = window_bytes
        self._wanted = parse_address(listen)
        self._settings = settings or ServerSettings()
        self._tls = tls
        self._stack = RpcInterceptor(
            authenticator=authenticator,
            metrics=RpcMetrics(registry),
            settings=self._settings,
            client_names=frozenset() if tls is None else tls.client_names,
            tracer=tracer,
            record_call=record_call,
            map_error=map_error,
        )
        self._health = HealthServicer([service.full_name for service in services])
        self._registry = registry
        self._server: grpc.aio.Server | None = None
        self._watching: list[asyncio.Task[None]] = []
        self._is_drain_announced = False
        self._port = self._wanted.port

    async def start(self) -> None:
        """Bind the port and serve calls; health stays NOT_SERVING until `set_serving`.

        Raises StartupError for a method without a scope, an unusable TLS file, or an address that
        cannot be bound.
        """
        names = self._service_names()
        server: grpc.aio.Server = MethodServer(
            interceptor=self._stack,
            refuse=self._stack.refuse,
            options=_server_options(self._settings, self._window_bytes),
            max_calls=self._settings.max_concurrent_calls,
        )
        for service in self._services:
            service.add(service.servicer, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if self._settings.channelz:
            channelz.add_channelz_servicer(server)
        if self._settings.reflection:
            add_reflection(server, names)
        check_scopes(self._reflected(names))
        self._port = self._bind(server)
        await server.start()
        allow_open_files()
        watch = watch_connections(self._port, self._settings.max_connections)
        self._watching.append(asyncio.create_task(watch))
        self._server = server
        _log.info("serving gRPC on %s", self.address)

    def set_serving(self, is_serving: bool, service: str | None = None) -> None:
        """Set the health of one service, or of all services and the server."""
        self._health.set_serving(is_serving, service)

    async def is_ready(self) -> bool:
        """Whether the health of the server is SERVING."""
        return self._health.is_serving()

    @property
    def address(self) -> Address:
        """The address with the port in use, also where the system chose it."""
        return Address(self._wanted.host, self._port)

    @property
    def port(self) -> int:
        return self._port

    async def announce_drain(self) -> None:
        """Report NOT_SERVING, and accept calls for `drain_delay_s` more; later calls do nothing."""
        self.set_serving(False)
        if not self._is_drain_announced:
            self._is_drain_announced = True
            await asyncio.sleep(self._settings.drain_delay_s)

    async def drain(self, grace_s: float | None = None, *, abort_after_s: float = 2.0) -> None:
        """Report NOT_SERVING, accept no new calls, and wait until all calls have ended.

        Calls that run for longer than `grace_s` (default: from the settings) end with DRAINING, and
        are cancelled `abort_after_s` later.
        """
        if self._server is None:
            return
        await self.announce_drain()
        grace = self._settings.drain_grace_s if grace_s is None else grace_s
        self._stack.end_calls(only_long_lived=True)
        stopping = asyncio.ensure_future(self._server.stop(grace + abort_after_s))
        await asyncio.wait([stopping], timeout=grace)
        self._stack.end_calls(only_long_lived=False)
        await stopping
        for task in self._watching:
            task.cancel()

    def _service_names(self) -> list[str]:
        extra = [CHANNELZ] if self._settings.channelz else []
        return [*(service.full_name for service in self._services), HEALTH, *extra]

    def _reflected(self, names: Sequence[str]) -> list[str]:
        return [*names, *([V1, V1ALPHA] if self._settings.reflection else [])]

    def _bind(self, server: grpc.aio.Server) -> int:
        target = str(self._wanted)
        # Binding first gives a clear error; gRPC's does not say what is wrong.
        open_listener(self._wanted).close()
        try:
            if self._tls is None:
                return server.add_insecure_port(target)
            certificate = ServerCertificate(self._tls, self._registry)
            self._watching.append(asyncio.create_task(certificate.watch()))
            return server.add_secure_port(target, certificate.grpc_credentials())
        except RuntimeError as error:
            raise StartupError(f"Cannot listen on {target}: {error}") from error


def _server_options(settings: ServerSettings, window_bytes: int) -> list[tuple[str, int]]:
    receive_timeout_ms = math.ceil(settings.receive_timeout_s * 1000)
    keepalive_ms = math.ceil(settings.keepalive_s * 1000)
    hard_limit = settings.max_message_bytes + HARD_LIMIT_MARGIN
    age_s = settings.max_connection_age_s
    age = [] if age_s is None else [("grpc.max_connection_age_ms", math.ceil(age_s * 1000))]
    return [
        *age,
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", min(hard_limit, 2**31 - 1)),
        ("grpc.max_send_message_length", settings.max_message_bytes),
        ("grpc.max_concurrent_streams", settings.max_streams_per_connection),
        ("grpc.max_allowed_incoming_connections", SPARE * settings.max_connections),
        ("grpc.server_handshake_timeout_ms", receive_timeout_ms),
        # Detects a dead client during a prefill. Pings of clients are accepted three times as often
        # as ours; gRPC ends the connection of one that pings more often.
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", keepalive_ms // 3),
        ("grpc.enable_channelz", int(settings.channelz)),
        *window_options(window_bytes),
    ]
