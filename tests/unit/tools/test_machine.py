"""Checks of a machine before the installation."""

import socket

import pytest

from tools import machine

INFERENCE, CONTROL = "127.0.0.1:50051", "127.0.0.1:50052"


def test_a_missing_compiler_or_header_is_detected() -> None:
    """Neither an unknown program nor a compiler without its headers compiles."""
    assert not machine.compiles("c++", ["NO_SUCH_VARIABLE", "no-such-compiler"], "")
    assert not machine.compiles("c++", ["CXX", "c++", "g++", "clang++"], "#include <no/such>")


def test_a_module_that_cannot_be_imported_is_detected() -> None:
    """Some distributions ship Python without venv."""
    assert machine.can_import("venv")
    assert not machine.can_import("no_such_module")


@pytest.mark.parametrize(
    ("arguments", "addresses"),
    [
        ([], ["127.0.0.1:8080", INFERENCE, CONTROL]),
        (["--port", "9"], ["127.0.0.1:9", INFERENCE, CONTROL]),
        (["--host", "0.0.0.0", "--model", "x.gguf"], ["0.0.0.0:8080", INFERENCE, CONTROL]),
        (["--listen", "[::1]:9", "--inference-listen", "a:1"], ["[::1]:9", "a:1", CONTROL]),
        (["--control-listen", "a:1"], ["127.0.0.1:8080", INFERENCE, "a:1"]),
        (["--config", "corral.toml"], []),
    ],
)
def test_the_addresses_of_up_are_derived_from_its_arguments(
    arguments: list[str], addresses: list[str]
) -> None:
    """Ports are checked before Corral is compiled and installed."""
    assert machine.listen_addresses(arguments) == addresses


def test_a_taken_port_is_reported_with_working_alternatives() -> None:
    """The advised options use other ports than the defaults, and another data folder."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        (problem,) = machine.taken_ports([address])

    assert problem.startswith(f"cannot listen on {address}")
    assert f'make run ARGS="{machine.SECOND_CORRAL}"' in problem
    advised = machine.listen_addresses(machine.SECOND_CORRAL.split())
    assert set(advised).isdisjoint(machine.listen_addresses([]))
    assert "--data-dir" in machine.SECOND_CORRAL
    assert machine.taken_ports([address]) == []
