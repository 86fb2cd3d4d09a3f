"""The table of clients of others."""

from pathlib import Path

from tools.client_table import CLIENTS, TABLE, Client, clients
from tools.test_clients import version


def test_the_programs_and_packages_of_the_table_exist() -> None:
    """Each client has a program, and a version in its lock file or a package of its environment."""
    locked = clients(TABLE["matrix"])
    for client in [*locked, *clients(TABLE["with_own_tests"])]:
        assert version(client)
    programs = [client.command("python")[1] for client in locked]
    for environment in [*TABLE["python"], *TABLE["node"]]:
        packages = environment["packages"].replace("[", " ").split()
        for client in clients(environment["clients"], program=environment["program"]):
            assert client.package in packages
            programs.append(client.command("python")[1])
    programs += [str(CLIENTS / "programs" / each["name"]) for each in TABLE["programs"]]

    assert [path for path in programs if not Path(path).is_file()] == []


def test_a_program_is_called_with_its_argument() -> None:
    """Where it is, or in the folder where its packages are."""
    client = Client("C", "p", program="openai_sdk.py", argument="chat")

    assert client.command("python")[2:] == ["chat"]
    assert client.command("node", CLIENTS / "matrix") == client.command("node")
