"""Clients that read too slowly are cut off."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from prometheus_client import CollectorRegistry

from gateway.http.bounded_connection import MIN_READ_BYTES, BoundedConnection
from gateway.http.connection_limits import ConnectionLimits
from svc_kit.metrics import HttpMetrics

LIMIT_S = 60.0
LARGE = 9_000_000


class FakeLoop:
    """An event loop with one timer, which fires on `fire_timer`."""

    timer: Callable[[], None] | None = None

    def call_later(self, delay: float, call: Callable[..., None], *args: Any) -> "FakeLoop":
        """Start the timer. The loop is its own timer handle."""
        assert delay == LIMIT_S
        self.timer = lambda: call(*args)
        return self

    def cancel(self) -> None:
        self.timer = None

    def fire_timer(self) -> None:
        """Let the time of the timer pass."""
        timer, self.timer = self.timer, None
        assert timer is not None
        timer()


class FakeTransport:
    """A connection with unread bytes."""

    unread = 0
    is_aborted = False

    def get_write_buffer_size(self) -> int:
        """The number of unread bytes."""
        return self.unread

    def abort(self) -> None:
        self.is_aborted = True


class FakeProtocol(asyncio.Protocol):
    def __init__(self) -> None:
        self.loop: Any = FakeLoop()
        self.transport: Any = FakeTransport()


class Protocol(BoundedConnection, FakeProtocol):
    """The protocol under test."""


def make_protocol() -> Protocol:
    limits = ConnectionLimits(
        receive_timeout_s=LIMIT_S,
        min_body_rate=0,
        unread_limit_s=LIMIT_S,
        max_per_address=None,
        closed=HttpMetrics(CollectorRegistry()).closed_connections,
    )
    return Protocol(limits=limits)


def test_a_client_that_reads_slowly_is_not_cut_off() -> None:
    """Only one that reads less than MIN_READ_BYTES within the limit."""
    protocol = make_protocol()
    loop, transport = cast("Any", protocol.loop), cast("Any", protocol.transport)
    transport.unread = LARGE
    protocol.pause_writing()
    for _ in range(3):
        transport.unread -= MIN_READ_BYTES
        loop.fire_timer()
        assert not transport.is_aborted
    transport.unread -= MIN_READ_BYTES - 1
    loop.fire_timer()

    assert transport.is_aborted


def test_the_timer_is_cancelled() -> None:
    """When the buffer has room or the connection is closed."""
    protocol = make_protocol()
    loop: Any = protocol.loop
    for stop_timer in (protocol.resume_writing, lambda: protocol.connection_lost(None)):
        protocol.pause_writing()
        assert loop.timer is not None
        stop_timer()
        assert loop.timer is None
