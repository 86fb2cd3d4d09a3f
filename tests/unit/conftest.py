"""What holds for unit tests alone: they talk to nobody."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

_is_blocked = False


def _refuse_connections(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook, which sees the connections of every library; it cannot be removed again."""
    if _is_blocked and event == "socket.connect" and isinstance(arguments[1], tuple):
        raise RuntimeError(f"a unit test connects to {arguments[1]}; it belongs in tests/service")


sys.addaudithook(_refuse_connections)


@pytest.fixture(autouse=True)
def _no_connections() -> Iterator[None]:
    """Connections to a host and port fail while a unit test runs; pairs of pipes do not."""
    global _is_blocked
    _is_blocked = True
    yield
    _is_blocked = False
