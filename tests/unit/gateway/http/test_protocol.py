"""Which clients are cut for what they leave unread."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.http.protocol import MIN_READ_BYTES, SlowClientCutoff

LIMIT_S = 60.0
LARGE = 9_000_000


class Timers:
    """A loop whose time passes when it is told to."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_later(self, delay: float, call: Callable[..., None], *args: Any) -> "Timers":
        """Remembers a call."""
        assert delay == LIMIT_S
        self.due = [lambda: call(*args)]
        return self

    def cancel(self) -> None:
        """Forgets it."""
        self.due = []

    def pass_limit(self) -> None:
        """Makes the call that waits, if one does."""
        waiting, self.due = self.due, []
        for call in waiting:
            call()


class Transport:
    """A connection whose client has left some bytes unread."""

    unread = 0
    is_cut = False

    def get_write_buffer_size(self) -> int:
        """How many."""
        return self.unread

    def abort(self) -> None:
        """Cuts it."""
        self.is_cut = True


class Base(asyncio.Protocol):
    """Stands for a protocol of uvicorn's."""

    def __init__(self, loop: Any, transport: Any) -> None:
        self.loop = loop
        self.transport = transport


class Protocol(SlowClientCutoff, Base):
    """One connection."""


@pytest.fixture
def timers() -> Timers:
    """The time."""
    return Timers()


@pytest.fixture
def transport() -> Transport:
    """The connection."""
    return Transport()


@pytest.fixture
def protocol(timers: Timers, transport: Transport) -> SlowClientCutoff:
    """What watches it."""
    return Protocol(unread_limit_s=LIMIT_S, loop=timers, transport=transport)


def test_a_large_answer_may_take_longer_than_the_limit(
    protocol: SlowClientCutoff, timers: Timers, transport: Transport
) -> None:
    """A whole answer is one write, which leaves no room until nearly all of it is read."""
    transport.unread = LARGE
    protocol.pause_writing()
    for _ in range(3):
        transport.unread -= MIN_READ_BYTES
        timers.pass_limit()
        assert not transport.is_cut
    transport.unread -= MIN_READ_BYTES - 1
    timers.pass_limit()

    assert transport.is_cut


def test_whoever_makes_room_is_not_watched(
    protocol: SlowClientCutoff, timers: Timers, transport: Transport
) -> None:
    """Until there is none again; nor is a connection that has ended."""
    for end in (protocol.resume_writing, lambda: protocol.connection_lost(None)):
        transport.unread = LARGE
        protocol.pause_writing()
        end()
        assert not timers.due
