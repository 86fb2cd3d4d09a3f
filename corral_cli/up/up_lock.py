"""What `corral up` writes into the lock file of its data folder, for other commands."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from svc_kit.local_files import read_lock
from svc_kit.settings.checks import Listener

LOCK_NAME = "up.lock"


class Running(NamedTuple):
    """The `corral up` that uses a data folder."""

    who: str
    """Its process, and since when it runs."""
    addresses: Mapping[tuple[str, str], str]
    """Where it listens, by service and setting."""


def write_addresses(data_dir: Path, listeners: Iterable[Listener]) -> None:
    """Add a line for each address to the lock file."""
    with suppress(OSError), (data_dir / LOCK_NAME).open("a") as file:
        file.writelines(
            f"{service} {setting} {address}\n" for service, setting, address in listeners
        )


def read_running(data_dir: Path) -> Running | None:
    """The `corral up` that uses a data folder; None if none does."""
    lines = read_lock(data_dir, LOCK_NAME)
    if lines is None:
        return None
    fields = [line.split(" ", 2) for line in lines[1:]]
    return Running(lines[0], {(each[0], each[1]): each[2] for each in fields if len(each) == 3})
