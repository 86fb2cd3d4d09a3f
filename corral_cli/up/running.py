"""What `corral up` writes into the lock file of its data folder, for other commands."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from svc_kit.local_files import read_lock
from svc_kit.settings.checks import Listener

LOCK_NAME = "up.lock"
_ACCESS = "access"


class Running(NamedTuple):
    """The `corral up` that uses a data folder."""

    who: str
    """Its process, and since when it runs."""
    addresses: Mapping[tuple[str, str], str]
    """Where it listens, by service and setting."""
    access: Mapping[str, str]
    """How commands call its services, by the fields of a profile."""


def write_addresses(
    data_dir: Path, listeners: Iterable[Listener], access: Mapping[str, str]
) -> None:
    """Add a line for each address, and for each way to call the services, to the lock file."""
    ways = ((_ACCESS, field, value) for field, value in access.items())
    with suppress(OSError), (data_dir / LOCK_NAME).open("a") as file:
        file.writelines(f"{kind} {name} {value}\n" for kind, name, value in (*listeners, *ways))


def read_running(data_dir: Path) -> Running | None:
    """The `corral up` that uses a data folder; None if none does."""
    lines = read_lock(data_dir, LOCK_NAME)
    if lines is None:
        return None
    fields = [line.split(" ", 2) for line in lines[1:]]
    addresses = {(each[0], each[1]): each[2] for each in fields if len(each) == 3}
    access = {name: value for (kind, name), value in addresses.items() if kind == _ACCESS}
    listeners = {key: value for key, value in addresses.items() if key[0] != _ACCESS}
    return Running(lines[0], listeners, access)
