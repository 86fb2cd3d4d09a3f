"""Unit tests must not open network connections."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

_is_blocked = False


def _refuse_connections(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook that sees the connections of all libraries. Hooks cannot be removed."""
    if _is_blocked and event == "socket.connect" and isinstance(arguments[1], tuple):
        raise RuntimeError(f"a unit test connects to {arguments[1]}; move it to tests/service")


sys.addaudithook(_refuse_connections)


@pytest.fixture(autouse=True)
def _no_connections() -> Iterator[None]:
    """Block connections to hosts while a unit test runs; socket pairs are allowed."""
    global _is_blocked
    _is_blocked = True
    yield
    _is_blocked = False
