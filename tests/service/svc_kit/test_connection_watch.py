"""Which connections of this process are closed, also while no file can be opened."""

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from svc_kit.connection_watch import watch_connections

MAX_OPEN_FILES = 256


@pytest.fixture
def opened() -> Iterator[list[int]]:
    """Files that a test opens until there are MAX_OPEN_FILES; closed at its end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files: list[int] = []
    yield files
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for file in files:
        os.close(file)


def use_all_open_files(opened: list[int]) -> None:
    """Open as many files as the process may have."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_OPEN_FILES, hard))
    with contextlib.suppress(OSError):
        while True:
            opened.append(os.open(os.devnull, os.O_RDONLY))


async def ends_while_watched(opened: list[int], limit: int) -> list[bool]:
    """Which of four connections the watch closes while no file is left."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        address = listener.getsockname()
        accepted = []
        for _ in range(4):
            stack.enter_context(socket.create_connection(address))
            accepted.append(stack.enter_context(listener.accept()[0]))
        closed = asyncio.Event()
        for each in accepted:
            loop.add_reader(each, closed.set)
        await asyncio.to_thread(int)  # loads the thread pool, as the watch does when it starts
        use_all_open_files(opened)
        watching = asyncio.create_task(watch_connections(address[1], limit))
        async with asyncio.timeout(50):
            await closed.wait()
        watching.cancel()
        for each in accepted:
            loop.remove_reader(each)
        return [is_ended(each) for each in accepted]


def is_ended(each: socket.socket) -> bool:
    """Whether a connection has ended, since its client sends nothing."""
    with contextlib.suppress(BlockingIOError):
        return each.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b""
    return False


async def test_connections_are_closed_while_no_file_can_be_opened(opened: list[int]) -> None:
    """The limit holds when it is needed most."""
    assert sum(await ends_while_watched(opened, 3)) == 1
