"""Server reflection, v1 and v1alpha: what grpcurl, buf curl, Postman and new clients ask for.

grpcio-reflection ships v1alpha only. The messages of v1 are the same on the wire, so one servicer
answers under both names; a copy of the descriptor makes v1 describable too.
"""

from collections.abc import Sequence
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from google.protobuf.descriptor import FileDescriptor
from grpc_reflection.v1alpha import reflection_pb2  # type: ignore[import-untyped]
from grpc_reflection.v1alpha.reflection import aio  # type: ignore[import-untyped]

V1ALPHA: Final = "grpc.reflection.v1alpha.ServerReflection"
V1: Final = "grpc.reflection.v1.ServerReflection"
_METHOD: Final = "ServerReflectionInfo"


def add_reflection(server: grpc.aio.Server, service_names: Sequence[str]) -> None:
    """Let callers of a server list the named services and fetch their descriptors."""
    _describe_v1()
    servicer = aio.ReflectionServicer([*service_names, V1, V1ALPHA], pool=_MethodFindingPool())
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for name in (V1, V1ALPHA):
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(name, {_METHOD: handler}),)
        )


class _MethodFindingPool:
    """The descriptor pool, where a method too is a symbol: `grpcurl describe` asks for those."""

    def __init__(self) -> None:
        self._pool = descriptor_pool.Default()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:
        """The file of a message, enum, service or method. Raises KeyError."""
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            return self._pool.FindMethodByName(symbol).containing_service.file


def _describe_v1() -> None:
    file = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    text = text_format.MessageToString(file).replace("v1alpha", "v1")
    copy = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    descriptor_pool.Default().AddSerializedFile(copy.SerializeToString())
