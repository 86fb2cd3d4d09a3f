"""Serves the methods of a service by its descriptor, without a generated servicer."""

from collections.abc import Callable, Mapping
from typing import Any

import grpc.aio
from google.protobuf.message_factory import GetMessageClass


def add_handlers(
    service: Any, functions: Mapping[str, Callable[[Any, Any], Any]], server: grpc.aio.Server
) -> None:
    """Serve each method of a service descriptor by the function with its name.

    Functions are called as methods of servicers: with the request and the context. Raises KeyError
    for a method without a function.
    """
    kinds = ("unary", "stream")
    handlers = {}
    for method in service.methods:
        kind = f"{kinds[method.client_streaming]}_{kinds[method.server_streaming]}"
        handlers[method.name] = getattr(grpc, f"{kind}_rpc_method_handler")(
            functions[method.name],
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
    server.add_registered_method_handlers(service.full_name, handlers)
