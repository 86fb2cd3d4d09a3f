"""Shares the time of the event loop among the parsers of a listener's connections.

What a client sends waits in its connection, which parses it in slices. In one turn of the loop all
slices and the requests that they begin take about TURN_S, so that the loop returns to other work.
Addresses that have used more than their allowance wait for all others, and their slices take at
most HEAVY_SHARE of the time.
"""

import asyncio
import contextvars
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Final, Protocol

TURN_S: Final = 0.001
"""Processor time of parsers in one turn of the loop; it is looked at after each slice."""
REQUEST_S: Final = 0.001
"""Added to that for the work that a request begins: about what a small one costs in later turns."""
HANDSHAKE_S: Final = 0.003
"""What a TLS handshake costs, with opening and closing its connection."""
ADDRESS_SHARE: Final = 0.1
"""The share of the time that an address may use without being heavy."""
ALLOWANCE_S: Final = 0.05
"""What it may use beyond that."""
HEAVY_SHARE: Final = 0.25
"""The share of the time for parsers of heavy addresses, all together. What the requests of others
leave is theirs: an address with many requests is not slowed down while it is alone."""
GRACE_S: Final = 0.025
"""How long heavy addresses wait after a request of another one has begun, half of the time at
most. Then that has its first token where nothing else delays it."""
_MAX_ADDRESSES: Final = 4096
"""So many are remembered after they have worked off what they used."""


class Parser(Protocol):
    """A connection with bytes that wait to be parsed."""

    peer: str
    """The address that it is counted under."""
    busy_until: float
    """When the time that it used is worked off at ADDRESS_SHARE."""
    is_queued: bool
    """Whether it waits for its turn. The scheduler's."""

    def parse_slice(self) -> bool:
        """Parse a slice of the bytes, if that is possible now; return whether it is once more."""

    def abort(self) -> None:
        """Close the connection."""


class ParserScheduler:
    """The order in which connections parse what they received."""

    def __init__(
        self,
        cpu_time: Callable[[], float] = time.thread_time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cpu_time = cpu_time
        self._now = now
        self._context = contextvars.copy_context()
        self._busy_until: dict[str, float] = {}
        """By address, as for a connection."""
        self._max_addresses = _MAX_ADDRESSES
        self._heavy_until = 0.0
        self._next_grace = 0.0
        self._waiting: list[tuple[bool, float, int, Parser]] = []
        self._numbers = itertools.count()
        self._spent = 0.0
        """In this turn of the loop."""
        self._next_turn: asyncio.Handle | None = None
        self._next_heavy: asyncio.TimerHandle | None = None

    def parse(self, parser: Parser) -> None:
        """Parse what a connection received: now, or when there is time for it."""
        if parser.is_queued:
            return
        more = True
        while more and self._spent < TURN_S and not self._is_heavy(parser.peer):
            more = self._parse_slice(parser)
        if more:
            self.queue(parser)
        self._schedule()

    def queue(self, parser: Parser) -> None:
        """Parse what a connection received in a later turn."""
        if parser.is_queued:
            return
        parser.is_queued = True
        turn = max(parser.busy_until, self._now())
        is_heavy, number = self._is_heavy(parser.peer), next(self._numbers)
        heapq.heappush(self._waiting, (is_heavy, turn, number, parser))
        self._schedule()

    def charge_request(self, parser: Parser) -> None:
        """Count a request that begins in the slice that is being parsed."""
        now = self._now()
        if not self._is_heavy(parser.peer) and now >= self._next_grace:
            self._heavy_until = max(self._heavy_until, now + GRACE_S)
            self._next_grace = now + 2 * GRACE_S
        self._charge(parser, REQUEST_S)

    def charge_handshake(self, parser: Parser) -> None:
        """Count a TLS handshake that begins in the slice; those of heavy addresses share the time
        of their parsers."""
        if self._is_heavy(parser.peer):
            self._heavy_until = max(self._heavy_until, self._now()) + HANDSHAKE_S / HEAVY_SHARE
        self._charge(parser, HANDSHAKE_S)

    def _is_heavy(self, peer: str) -> bool:
        allowed = ALLOWANCE_S / ADDRESS_SHARE
        return self._busy_until.get(peer, 0.0) > self._now() + allowed

    def _parse_slice(self, parser: Parser) -> bool:
        is_heavy, start = self._is_heavy(parser.peer), self._cpu_time()
        try:
            more = parser.parse_slice()
        except BaseException:
            parser.abort()
            raise
        cost = self._cpu_time() - start
        if is_heavy:
            self._heavy_until = max(self._heavy_until, self._now()) + cost / HEAVY_SHARE
        self._charge(parser, cost)
        return more

    def _charge(self, parser: Parser, cost: float) -> None:
        self._spent += cost
        now = self._now()
        parser.busy_until = max(parser.busy_until, now) + cost / ADDRESS_SHARE
        busy_until = max(self._busy_until.get(parser.peer, 0.0), now) + cost / ADDRESS_SHARE
        self._busy_until[parser.peer] = busy_until
        if len(self._busy_until) > self._max_addresses:
            self._busy_until = {name: t for name, t in self._busy_until.items() if t > now}
            self._max_addresses = max(_MAX_ADDRESSES, 2 * len(self._busy_until))

    def _schedule(self) -> None:
        """Have `_turn` called in the next turn, and when heavy connections may go on."""
        loop = asyncio.get_running_loop()
        is_light_waiting = self._waiting and not self._waiting[0][0]
        if self._next_turn is None and (self._spent or is_light_waiting):
            self._next_turn = loop.call_soon(self._turn, context=self._context)
        if self._next_heavy is None and self._waiting and not is_light_waiting:
            delay_s = max(0.0, self._heavy_until - self._now())
            self._next_heavy = loop.call_later(delay_s, self._heavy_turn, context=self._context)

    def _heavy_turn(self) -> None:
        self._next_heavy = None
        if self._next_turn is None:
            self._turn()

    def _turn(self) -> None:
        self._next_turn, self._spent = None, 0.0
        try:
            while self._waiting and self._spent < TURN_S:
                was_heavy, *_, parser = self._waiting[0]
                if was_heavy and self._heavy_until > self._now():
                    break
                heapq.heappop(self._waiting)
                parser.is_queued = False
                # An address may have become heavy while many connections of it waited.
                is_late = self._is_heavy(parser.peer) and not was_heavy
                if is_late or self._parse_slice(parser):
                    self.queue(parser)
        finally:
            self._schedule()
