"""Ports are checked, chosen and reserved before any service starts."""

import socket
import sys

import pytest

from corral_cli.up.ports import bind_problem, choose_port, reachable, reserve_ports
from svc_kit.network import Address


@pytest.mark.parametrize(("host", "reached"), [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("a", "a")])
def test_clients_use_loopback_for_a_wildcard(host: str, reached: str) -> None:
    """A client cannot connect to a wildcard address."""
    assert reachable(Address(host, 1)) == Address(reached, 1)


def test_a_port_in_use_is_reported_with_a_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address("127.0.0.1", server.getsockname()[1])

        problem = bind_problem(address)

    assert problem == (
        f"{address} is in use: stop the process that listens there, or choose another port"
    )
    assert bind_problem(address) is None


def test_an_address_of_another_machine_is_a_problem() -> None:
    """Nothing here can listen on it."""
    assert "cannot listen on 192.0.2.1:1234" in (bind_problem(Address("192.0.2.1", 1234)) or "")


def test_port_zero_becomes_a_free_port() -> None:
    """Other ports are not changed."""
    chosen = choose_port(Address("127.0.0.1", 0))

    assert bind_problem(chosen) is None
    assert choose_port(Address("127.0.0.1", 8080)).port == 8080


def test_a_chosen_port_is_not_an_ephemeral_port() -> None:
    """Linux assigns ports from 32768 on to connections, before the service listens."""
    chosen = [choose_port(Address("127.0.0.1", 0)).port for _ in range(100)]

    assert max(chosen) < 32_768


def test_a_port_is_chosen_once() -> None:
    """Ports that are assigned to other listeners, or in use, are not chosen."""
    any_port = Address("127.0.0.1", 0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        used = server.getsockname()[1]
        assigned = choose_port(any_port)
        free = choose_port(any_port, [assigned])
        candidates = (used, assigned.port, free.port)

        assert choose_port(any_port, [assigned], candidates) == free
        with pytest.raises(OSError, match="is free"):
            choose_port(any_port, [assigned, free], candidates)


@pytest.mark.skipif(sys.platform != "linux", reason="ports are reserved on Linux only")
def test_a_reserved_port_can_be_bound_by_one_server_only() -> None:
    """And by no connection."""
    address = choose_port(Address("127.0.0.1", 0))
    target = (address.host, address.port)
    with reserve_ports([address]):
        with socket.socket() as connection, pytest.raises(OSError, match="in use"):
            connection.bind(target)
        for _ in range(2):  # also after a restart
            with socket.create_server(target), pytest.raises(OSError, match="in use"):
                socket.create_server(target)
    with socket.socket() as connection:
        connection.bind(target)
