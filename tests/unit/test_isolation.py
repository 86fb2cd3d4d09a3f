"""Unit tests cannot open connections."""

import socket

import pytest


def test_a_connection_in_a_unit_test_raises_an_error() -> None:
    """Also to loopback; the message says where the test belongs."""
    refusal = pytest.raises(RuntimeError, match="move it to tests/service")

    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client, refusal:
        client.connect(server.getsockname())
