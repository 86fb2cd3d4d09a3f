"""Messages of a connection, however their bytes arrive."""

import asyncio
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from inference_svc.engine_client.child_pipe import PipeReader
from inference_svc.engine_client.process import ChildProcess, has_unread


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a pipe; the first one is read."""
    own, other = socket.socketpair()
    with own, other:
        yield own, other


def sent_bytes(messages: list[Any]) -> bytes:
    """What a connection writes for messages."""
    reading, writing = socket.socketpair()
    with reading, reading.makefile("rb") as file:
        with Connection(writing.detach()) as connection:
            for message in messages:
                connection.send(message)
        return file.read()


@given(
    st.lists(st.one_of(st.binary(max_size=300), st.lists(st.integers())), max_size=6),
    st.lists(st.integers(1, 60), max_size=12),
)
async def test_messages_arrive_in_order_in_any_pieces(
    messages: list[Any], pieces: list[int]
) -> None:
    """The last ones also if the sender has ended."""
    data, received = sent_bytes(messages), list[Any]()
    own, other = socket.socketpair()
    with own:
        reader = PipeReader(own, received.append)
        with other:
            for size in pieces:
                other.sendall(data[:size])
                data = data[size:]
                await asyncio.sleep(0)
            other.sendall(data)
        reader.close()
        await asyncio.sleep(0)

    assert received == messages


async def test_a_message_with_the_long_form_of_its_size_is_read(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """Which connections use above 2 GiB."""
    received = list[Any]()
    reader = PipeReader(ends[0], received.append)
    body = sent_bytes(["large"])[4:]
    ends[1].sendall(struct.pack("!iQ", -1, len(body)) + body)
    reader.close()
    await asyncio.sleep(0)

    assert received == ["large"]


async def test_an_error_of_one_message_does_not_keep_the_next(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    received, errors = list[Any](), list[Any]()

    def receive(message: Any) -> None:
        received.append(message)
        raise ValueError(message)

    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    reader = PipeReader(ends[0], receive)
    ends[1].sendall(sent_bytes(["a", "b"]))
    reader.close()
    await asyncio.sleep(0)

    assert received == ["a", "b"]
    assert len(errors) == 2


async def test_the_sender_sees_what_the_loop_has_not_read(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    has_come = asyncio.Event()
    reader = PipeReader(ends[0], lambda _: has_come.set())
    with Connection(ends[1].detach()) as connection:
        connection.send(None)
        assert has_unread(connection)
        await has_come.wait()
        assert not has_unread(connection)
        reader.close()


@pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_large_messages_pass_both_ways_on_any_loop(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Those of services are uvloop's, which make what they read from non-blocking."""
    sent = [bytes([number]) * 3_000_000 for number in range(4)]
    received, exits = list[bytes](), list[int]()

    async def echo() -> None:
        done = asyncio.Event()

        def receive(message: bytes) -> None:
            received.append(message)
            if len(received) == len(sent):
                done.set()

        child = ChildProcess[bytes, bytes](
            "tests.support.echo_child", sent[0], on_message=receive, on_exit=exits.append
        )
        for message in sent[1:]:
            child.send(message)
        async with asyncio.timeout(60):
            await done.wait()
        await child.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(echo())
    assert received == sent
    assert exits == [-signal.SIGKILL]
