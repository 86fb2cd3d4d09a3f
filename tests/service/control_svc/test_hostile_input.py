"""Hostile values in every field of every RPC of the control service: a typed error or a response.

The fields come from the descriptors, so that new services are tested too.
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

from svc_kit.errors import DomainError, Internal
from svc_kit.rpc.client import translate_errors
from tests.support.control import Client, RunningControl
from tests.support.examples import every_nth
from tests.support.threads import ThreadClient, make_new_message
from tools.rpc_methods import METHODS

on_one_loop = pytest.mark.asyncio(loop_scope="module")
"""All tests share one control service."""
PACKAGE = "/corral.control.v1."
FINAL_STATES = ("completed", "requires_action", "failed", "incomplete")
"""Final states of runs that are not cancelled."""
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
    """The paths of all RPCs, from the protos."""
    return sorted(name for name in METHODS if name.startswith(PACKAGE))


def describe(name: str) -> MethodDescriptor:
    service, _, method = name[1:].rpartition("/")
    pool = descriptor_pool.Default()
    return pool.FindServiceByName(service).methods_by_name[method]


def hostile(message: Message, depth: int = 3) -> Iterator[Message]:
    """Yield the empty message, and messages with a hostile value in one field."""
    kind = type(message)
    yield kind()
    for field in message.DESCRIPTOR.fields if depth else ():
        for value in values(field, depth):
            result = kind()
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                continue
            if field.is_repeated:
                getattr(result, field.name).extend([value, value])
            elif isinstance(value, Message):
                getattr(result, field.name).CopyFrom(value)
            else:
                setattr(result, field.name, value)
            yield result


def part_of(messages: Iterator[Message], url: str | None) -> Iterator[Message]:
    """A quarter of the messages, another one on each database."""
    return every_nth(messages, 4, 0 if url is None else 2)


def values(field: Any, depth: int) -> Iterator[Any]:
    if field.message_type is not None:
        yield from hostile(message_factory.GetMessageClass(field.message_type)(), depth - 1)
    elif field.type == FieldDescriptor.TYPE_STRING:
        yield from TEXTS
    elif field.type == FieldDescriptor.TYPE_BYTES:
        yield from (b"", b"\xff" * 70_000)
    else:
        yield from NUMBERS[field.cpp_type]


async def call_error(channel: grpc.aio.Channel, name: str, request: Message) -> DomainError | None:
    try:
        await call(channel, name, request)
    except DomainError as error:
        return error
    return None


async def call(channel: grpc.aio.Channel, name: str, request: Message) -> None:
    """Make a call of any kind and read its responses, for a short time if it is long-lived.

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
    raw, timeout_s = request.SerializeToString(), 0.2 if METHODS[name].is_long_lived else 10.0
    with translate_errors():
        call_ = make(name)(iter([raw]) if method.client_streaming else raw, timeout=timeout_s)
        if not method.server_streaming:
            await call_
            return
        async for _ in call_:
            pass


def test_all_packages_are_tested() -> None:
    """The table of scopes contains the RPCs of files and uploads."""
    assert {f"{PACKAGE}FileService/CreateFile", f"{PACKAGE}UploadService/AddUploadPart"} <= set(
        methods()
    )


@on_one_loop
@pytest.mark.parametrize("name", methods())
async def test_hostile_values_raise_typed_errors(
    shared_control: RunningControl, shared_database_url: str | None, name: str
) -> None:
    """Never INTERNAL, always with a reason, and the service continues."""
    request = message_factory.GetMessageClass(describe(name).input_type)()
    for message in part_of(hostile(request), shared_database_url):
        error = await call_error(shared_control.client.channel, name, message)
        assert not isinstance(error, Internal), (message, error)
    assert (await shared_control.client.create()).size_bytes == 5


async def create_run(
    stub: Any, client: Client, options: run_service_pb2.RunOptions
) -> run_pb2.Run | DomainError:
    """Create a run on a new thread; return it or the error."""
    request = run_service_pb2.CreateThreadAndRunRequest(
        messages=[make_new_message("Hi")], run=options
    )
    try:
        response = await client.call(stub.CreateThreadAndRun, request)
    except DomainError as error:
        return error
    run: run_pb2.Run = response.run
    return run


@on_one_loop
async def test_runs_with_hostile_options_end(
    shared_control: RunningControl, shared_database_url: str | None
) -> None:
    """Runs that are accepted reach a final state."""
    client, stub = shared_control.client, RunServiceStub(shared_control.client.channel)
    assistant = await ThreadClient(client).create_assistant()
    runs: list[run_pb2.Run] = []
    for message in part_of(hostile(run_service_pb2.RunOptions(), depth=2), shared_database_url):
        options = cast("run_service_pb2.RunOptions", message)
        options.assistant_id = options.assistant_id or assistant.id
        outcome = await create_run(stub, client, options)
        assert not isinstance(outcome, Internal), (options, outcome)
        runs += [] if isinstance(outcome, DomainError) else [outcome]
    for run in runs:
        request = run_service_pb2.WatchRunRequest(thread_id=run.thread_id, run_id=run.id)
        with translate_errors():
            events = [each async for each in stub.WatchRun(request, metadata=client.metadata)]
        assert events[-1].event.run_changed.what in FINAL_STATES, run
    assert runs
