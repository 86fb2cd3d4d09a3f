"""A gRPC server that answers every method of every service with one text in all strings."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pool import Default
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tools.rpc_methods import list_services

_DEPTH = 6


def fill(message: Message, text: str, depth: int = _DEPTH) -> Message:
    """Set all strings of a message, and one element of each list."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is None:
            if field.type == FieldDescriptor.TYPE_STRING:
                value = "" if field.name == "next_page_token" else text
                if field.is_repeated:
                    getattr(message, field.name).append(value)
                else:
                    setattr(message, field.name, value)
        elif field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].type == FieldDescriptor.TYPE_STRING:
                getattr(message, field.name)[text] = text
        elif depth and field.message_type.full_name not in (
            "google.protobuf.Timestamp",
            "google.protobuf.Duration",
        ):
            inner = getattr(message, field.name)
            inner = inner.add() if field.is_repeated else inner
            inner.SetInParent()
            fill(inner, text, depth - 1)
    return message


class _Methods(grpc.GenericRpcHandler):
    def __init__(self, text: str, error: bool) -> None:
        self._text = text
        self._error = error

    def service(self, details: Any) -> Any:
        service, name = details.method[1:].split("/")
        method = Default().FindServiceByName(service).methods_by_name[name]
        request, answer = map(GetMessageClass, (method.input_type, method.output_type))

        def reply(_request: Any, context: grpc.ServicerContext) -> Message:
            if self._error:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, self._text)
            return fill(answer(), self._text)

        def stream(request: Any, context: grpc.ServicerContext) -> Iterator[Message]:
            yield reply(request, context)

        kind = "stream" if method.client_streaming else "unary"
        make = f"{kind}_{'stream' if method.server_streaming else 'unary'}_rpc_method_handler"
        return getattr(grpc, make)(
            stream if method.server_streaming else reply,
            request_deserializer=request.FromString,
            response_serializer=answer.SerializeToString,
        )


@contextmanager
def run_hostile_rpc(text: str, *, error: bool = False) -> Iterator[str]:
    """Serve on a free port of loopback, and yield the address. With `error` every call fails, and
    the text is the message."""
    list_services()  # loads the descriptors
    server = grpc.server(ThreadPoolExecutor(4), handlers=[_Methods(text, error)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
