"""The scopes of callers, and the options of RPCs, which say what scope a call needs."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from corral.auth.v1 import method_options_pb2 as pb
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor

from svc_kit.lifecycle import StartupError


class Scope(StrEnum):
    """What a caller needs in order to call a method; `method_options.proto` describes each."""

    PUBLIC = "public"
    KNOWN = "known"
    GENERATE = "generate"
    FILES = "files"
    FILES_READ = "files_read"
    READ = "read"
    INFERENCE = "inference"
    ADMIN_READ = "admin_read"
    ADMIN = "admin"
    MODELS_READ = "generate or admin_read"
    REQUESTS_READ = "inference or admin_read"
    REQUESTS = "inference or admin"
    SERVICE = "service"


GRANTABLE: Final = frozenset(
    {
        Scope.GENERATE,
        Scope.FILES,
        Scope.FILES_READ,
        Scope.READ,
        Scope.INFERENCE,
        Scope.ADMIN_READ,
        Scope.ADMIN,
    }
)
"""The scopes that a key can have."""
ALL_SCOPES: Final = frozenset({Scope.INFERENCE, Scope.ADMIN})
"""The scopes that include all others of keys."""
INCLUDED: Final[Mapping[Scope, frozenset[Scope]]] = MappingProxyType(
    {
        Scope.GENERATE: frozenset({Scope.INFERENCE}),
        Scope.FILES: frozenset({Scope.INFERENCE}),
        Scope.FILES_READ: frozenset({Scope.FILES, Scope.READ, Scope.INFERENCE}),
        Scope.READ: frozenset({Scope.INFERENCE}),
        Scope.ADMIN_READ: frozenset({Scope.ADMIN}),
        Scope.MODELS_READ: frozenset(
            {Scope.GENERATE, Scope.INFERENCE, Scope.ADMIN_READ, Scope.ADMIN}
        ),
        Scope.REQUESTS_READ: frozenset({Scope.INFERENCE, Scope.ADMIN_READ, Scope.ADMIN}),
        Scope.REQUESTS: frozenset({Scope.INFERENCE, Scope.ADMIN}),
    }
)
"""Which other scopes include a scope."""


class MethodOptions(NamedTuple):
    """The options of a method: those of `method_options.proto`."""

    scope: Scope
    is_long_lived: bool = False


GRPC_METHODS: Final[Mapping[str, MethodOptions]] = MappingProxyType(
    {
        # Load balancers and kubelets send no credential.
        "/grpc.health.v1.Health/Check": MethodOptions(Scope.PUBLIC),
        "/grpc.health.v1.Health/List": MethodOptions(Scope.PUBLIC),
        "/grpc.health.v1.Health/Watch": MethodOptions(Scope.PUBLIC, is_long_lived=True),
        **{
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo": MethodOptions(
                Scope.KNOWN, is_long_lived=True
            )
            for version in ("v1", "v1alpha")
        },
        **{
            f"/grpc.channelz.v1.Channelz/Get{noun}": MethodOptions(Scope.ADMIN_READ)
            for noun in (
                *("Channel", "Server", "ServerSockets", "Servers", "Socket", "Subchannel"),
                "TopChannels",
            )
        },
    }
)
"""The options of gRPC's own methods, whose protos have none, by path."""
VLLM_METHODS: Final[Mapping[str, MethodOptions]] = MappingProxyType(
    {
        f"/vllm.grpc.engine.VllmEngine/{name}": MethodOptions(scope)
        for scope, names in (
            (Scope.GENERATE, ("Generate", "Embed", "Abort")),
            (Scope.MODELS_READ, ("GetModelInfo", "GetServerInfo", "GetLoads", "GetTokenizer")),
            (Scope.KNOWN, ("HealthCheck", "SubscribeKvEvents")),
            (Scope.ADMIN, ("FlushCache", "StartProfile", "StopProfile")),
        )
        for name in names
    }
)
"""Those of vLLM's service, by path."""
_ORCA_METHODS: Final[Mapping[str, MethodOptions]] = MappingProxyType(
    {
        # The balancers in gRPC's clients send no credential.
        "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics": MethodOptions(
            Scope.PUBLIC, is_long_lived=True
        )
    }
)
_METHODS_OF_OTHERS: Final[Mapping[str, MethodOptions]] = {
    **GRPC_METHODS,
    **VLLM_METHODS,
    **_ORCA_METHODS,
}


def method_path(method: MethodDescriptor) -> str:
    """The path of a method in HTTP/2: "/package.Service/Method"."""
    return f"/{method.containing_service.full_name}/{method.name}"


def method_options(method: MethodDescriptor) -> MethodOptions:
    """The options of a method. Raises StartupError if it has no scope."""
    if (options := _METHODS_OF_OTHERS.get(method_path(method))) is not None:
        return options
    values: Any = method.GetOptions().Extensions  # protobuf types extensions as bare fields
    if not (scope := values[pb.scope]):
        raise StartupError(f"{method_path(method)} has no scope: option corral.auth.v1.scope")
    return MethodOptions(Scope[pb.Scope.Name(scope).removeprefix("SCOPE_")], values[pb.long_lived])


def find_method_options(path: str) -> MethodOptions:
    """The options of the method with a path. Raises KeyError if no proto has it."""
    name = path.removeprefix("/").replace("/", ".")
    return method_options(descriptor_pool.Default().FindMethodByName(name))


def check_scopes(service_names: Iterable[str]) -> None:
    """Raise StartupError if a method of one of the services has no scope."""
    for name in service_names:
        for method in descriptor_pool.Default().FindServiceByName(name).methods:
            method_options(method)
