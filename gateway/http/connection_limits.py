"""The limits of HTTP connections, and how many connections each client address has."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import Counter as Metric

from gateway.http.parser_scheduler import ParserScheduler
from svc_kit.network import peer_network

MAX_HEAD_BYTES: Final = 64 * 1024
"""The most bytes of a head; and of everything else in a request that is not its body: chunk heads
and trailers."""
HEAD_ALLOWANCE_BYTES: Final = 2048
"""Added for the line ends, separators and spaces of a head."""
CHUNK_HEAD_BYTES: Final = 64
"""Added for each chunk."""


@dataclass
class ConnectionLimits:
    """The limits of all connections of a listener."""

    receive_timeout_s: float
    """How long the head of a request may take."""
    min_body_rate: int
    """The least bytes per second of a request body, over twice `receive_timeout_s`."""
    unread_limit_s: float
    max_per_address: int | None
    closed: Metric
    """Counts the connections that were closed because of a limit, by cause."""
    parsers: ParserScheduler = field(default_factory=ParserScheduler)
    _open: Counter[str] = field(default_factory=Counter)

    def add(self, host: str) -> str:
        """Count a connection from an IP address; return the name it is counted under."""
        name = peer_network(host)
        self._open[name] += 1
        return name

    def is_full(self, name: str) -> bool:
        """Whether more connections are counted under a name than one may have."""
        return self.max_per_address is not None and self._open[name] > self.max_per_address

    def remove(self, name: str) -> None:
        """Count a connection no more."""
        self._open[name] -= 1
        if not self._open[name]:
            del self._open[name]
