"""A taken port is found before anything starts."""

import socket
import sys

import pytest

from corral_cli.up import ports
from corral_cli.up.ports import held, reachable, why_not, with_free_port
from svc_kit.network import Address


@pytest.mark.parametrize(("host", "reached"), [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("a", "a")])
def test_a_wildcard_is_reached_over_loopback(host: str, reached: str) -> None:
    """A client cannot connect to "every interface"."""
    assert reachable(Address(host, 1)) == Address(reached, 1)


def test_a_taken_port_is_named_with_its_remedy() -> None:
    """The operator reads which address it is and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address("127.0.0.1", server.getsockname()[1])

        problem = why_not(address)

    assert problem == f"{address} is taken: stop what listens there, or choose another port"
    assert why_not(address) is None


def test_a_host_that_is_not_ours_is_a_problem() -> None:
    """An address of another machine cannot be listened on."""
    assert "cannot listen on 192.0.2.1:1234" in (why_not(Address("192.0.2.1", 1234)) or "")


def test_port_zero_becomes_a_free_port() -> None:
    """It can be listened on; other ports stay."""
    chosen = with_free_port(Address("127.0.0.1", 0))

    assert why_not(chosen) is None
    assert with_free_port(Address("127.0.0.1", 8080)).port == 8080


def test_what_was_chosen_is_given_to_nobody_else() -> None:
    """Neither to a connection nor to another listener, before its service listens: by default
    Linux gives them ports from 32768 on."""
    chosen = [with_free_port(Address("127.0.0.1", 0)).port for _ in range(100)]

    assert max(chosen) < 32_768


def test_no_port_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was chosen for another is as free as before: nobody listens there yet. Nor is one that
    somebody does listen on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        used = server.getsockname()[1]
        chosen = with_free_port(Address("127.0.0.1", 0))
        left = with_free_port(Address("127.0.0.1", 0), [chosen])
        monkeypatch.setattr(ports, "_FREE_PORTS", (used, chosen.port, left.port))

        assert with_free_port(Address("127.0.0.1", 0), [chosen]) == left


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is kept")
def test_a_port_that_is_held_is_for_servers_alone() -> None:
    """No connection gets it, though nobody listens; a server does, a second one does not."""
    address = with_free_port(Address("127.0.0.1", 0))
    target = (address.host, address.port)
    with held([address]):
        with socket.socket() as connection, pytest.raises(OSError, match="in use"):
            connection.bind(target)
        for _ in range(2):  # one that starts again, too
            with socket.create_server(target), pytest.raises(OSError, match="in use"):
                socket.create_server(target)
    with socket.socket() as connection:
        connection.bind(target)
