"""Unit tests are kept from talking to anybody."""

import socket

import pytest


def test_a_unit_test_that_connects_is_told_where_it_belongs() -> None:
    """Even to loopback: what needs a server is a service test."""
    refusal = pytest.raises(RuntimeError, match="belongs in tests/service")

    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client, refusal:
        client.connect(server.getsockname())
