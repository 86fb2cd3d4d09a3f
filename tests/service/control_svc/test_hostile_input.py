"""Every RPC of the control service, told nonsense in every field: a typed error or an answer.

The fields come from the descriptors, so that a service which is added is tried as well.
"""

from collections.abc import Iterator
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from corral.control.v1 import run_pb2, run_service_pb2
from corral.control.v1.run_service_pb2_grpc import RunServiceStub
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from svc_kit.auth.scopes import METHOD_SCOPES
from svc_kit.errors import DomainError, Internal
from svc_kit.rpc.client import translate_errors
from svc_kit.rpc.interceptors import LONG_LIVED
from tests.support.control import Client, RunningControl
from tests.support.threads import ThreadClient, saying

PACKAGE = "/corral.control.v1."
ENDS = ("completed", "requires_action", "failed", "incomplete")
"""Of runs that nobody cancels."""
TEXTS = (
    "",
    "\x00",
    "../../etc/passwd",
    "file-" + "0" * 32,
    "upload_" + "f" * 32,
    "'; DROP TABLE files; --",
    "\u202e\u2028",
    "\U0010ffff" * 300,
    "x" * 300_000,
)
NUMBERS = {
    FieldDescriptor.CPPTYPE_INT32: (-1, -(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-1, -(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_FLOAT: (float("nan"), float("inf"), -1e30),
    FieldDescriptor.CPPTYPE_DOUBLE: (float("nan"), float("-inf"), 1e300),
    FieldDescriptor.CPPTYPE_ENUM: (-1, 1, 999),
    FieldDescriptor.CPPTYPE_BOOL: (True,),
}


def methods() -> list[str]:
    """Every RPC of the service that has a scope: none can be served without."""
    return sorted(name for name in METHOD_SCOPES if name.startswith(PACKAGE))


def describe(name: str) -> MethodDescriptor:
    """The descriptor of a method by its path."""
    service, _, method = name[1:].rpartition("/")
    pool = descriptor_pool.Default()
    return pool.FindServiceByName(service).methods_by_name[method]


def hostile(message: Message, depth: int = 3) -> Iterator[Message]:
    """The message with nothing in it, and with one nonsense in one field after the other."""
    kind = type(message)
    yield kind()
    for field in message.DESCRIPTOR.fields if depth else ():
        for value in values(field, depth):
            made = kind()
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                continue
            if field.is_repeated:
                getattr(made, field.name).extend([value, value])
            elif isinstance(value, Message):
                getattr(made, field.name).CopyFrom(value)
            else:
                setattr(made, field.name, value)
            yield made


def values(field: Any, depth: int) -> Iterator[Any]:
    """Nonsense of a field's kind."""
    if field.message_type is not None:
        yield from hostile(message_factory.GetMessageClass(field.message_type)(), depth - 1)
    elif field.type == FieldDescriptor.TYPE_STRING:
        yield from TEXTS
    elif field.type == FieldDescriptor.TYPE_BYTES:
        yield from (b"", b"\xff" * 70_000)
    else:
        yield from NUMBERS[field.cpp_type]


async def refusal(channel: grpc.aio.Channel, name: str, request: Message) -> DomainError | None:
    """What a call is refused with; None: it is answered."""
    try:
        await call(channel, name, request)
    except DomainError as error:
        return error
    return None


async def call(channel: grpc.aio.Channel, name: str, request: Message) -> None:
    """Make a call of any kind, and take all of its answer, or what an endless one says at once.

    Raises DomainError.
    """
    method = describe(name)
    kinds = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }
    make: Any = kinds[method.client_streaming, method.server_streaming]
    raw, patience_s = request.SerializeToString(), 0.2 if name in LONG_LIVED else 10.0
    with translate_errors():
        calling = make(name)(iter([raw]) if method.client_streaming else raw, timeout=patience_s)
        if not method.server_streaming:
            await calling
            return
        async for _ in calling:
            pass


def test_no_service_is_left_out() -> None:
    """The packages that the scopes name are those that the descriptors have."""
    assert {f"{PACKAGE}FileService/CreateFile", f"{PACKAGE}UploadService/AddUploadPart"} <= set(
        methods()
    )


@pytest.mark.parametrize("name", methods())
async def test_nonsense_is_answered_by_a_typed_error(running: RunningControl, name: str) -> None:
    """Never INTERNAL, never a status without a reason, and the service goes on."""
    request = message_factory.GetMessageClass(describe(name).input_type)()
    for message in hostile(request):
        error = await refusal(running.client.channel, name, message)
        assert not isinstance(error, Internal), (message, error)
    assert (await running.client.create()).size_bytes == 5


async def begun_or_refused(
    stub: Any, client: Client, options: run_service_pb2.RunOptions
) -> run_pb2.Run | DomainError:
    """What asking for a run on a new thread comes to."""
    asked = run_service_pb2.CreateThreadAndRunRequest(messages=[saying("Hi")], run=options)
    try:
        with translate_errors():
            answer = await stub.CreateThreadAndRun(asked, metadata=client.metadata)
    except DomainError as error:
        return error
    run: run_pb2.Run = answer.run
    return run


async def test_nonsense_in_a_run_ends_it(running: RunningControl) -> None:
    """What is not refused at once is carried out to an end that is told."""
    client, stub = running.client, RunServiceStub(running.client.channel)
    assistant = await ThreadClient(client).new_assistant()
    begun: list[run_pb2.Run] = []
    for message in hostile(run_service_pb2.RunOptions(), depth=2):
        options = cast("run_service_pb2.RunOptions", message)
        options.assistant_id = options.assistant_id or assistant.id
        outcome = await begun_or_refused(stub, client, options)
        assert not isinstance(outcome, Internal), (options, outcome)
        begun += [] if isinstance(outcome, DomainError) else [outcome]
    for run in begun:
        asked = run_service_pb2.WatchRunRequest(thread_id=run.thread_id, run_id=run.id)
        with translate_errors():
            events = [each async for each in stub.WatchRun(asked, metadata=client.metadata)]
        assert events[-1].event.run_changed.what in ENDS, run
    assert begun
