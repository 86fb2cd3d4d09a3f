"""What is missing on a machine is said in one line each, before anything is installed."""

import socket

import pytest

from tools import machine

INFERENCE, CONTROL = "127.0.0.1:50051", "127.0.0.1:50052"


def test_a_missing_compiler_is_noticed() -> None:
    """A name that is not there, and a header that is not there, both count as missing."""
    assert not machine.compiles("c++", ["NO_SUCH_VARIABLE", "no-such-compiler"], "")
    assert not machine.compiles("c++", ["CXX", "c++", "g++", "clang++"], "#include <no/such>")


def test_a_module_that_cannot_be_imported_is_noticed() -> None:
    """A distribution may ship Python without venv."""
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
def test_the_addresses_of_up_are_known_before_it_is_installed(
    arguments: list[str], addresses: list[str]
) -> None:
    """A port that is taken should not be found after minutes of compiling."""
    assert machine.listen_addresses(arguments) == addresses


def test_a_taken_port_is_one_line_with_its_remedy() -> None:
    """The line can be followed as it stands."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        (problem,) = machine.taken_ports([address])

    assert problem.startswith(f"cannot listen on {address}")
    assert f'make run ARGS="{machine.SECOND_CORRAL}"' in problem
    advised = machine.listen_addresses(machine.SECOND_CORRAL.split())
    assert set(advised).isdisjoint(machine.listen_addresses([]))
    assert "--data-dir" in machine.SECOND_CORRAL
    assert machine.taken_ports([address]) == []
