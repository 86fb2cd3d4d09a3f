"""The lock of a data folder that `corral up` uses. Other commands find its services in the file."""

import fcntl
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final

from svc_kit.local_files import lock_folder

_NAME: Final = "up.lock"


def lock_data_folder(folder: Path, access: Mapping[str, object]) -> AbstractContextManager[None]:
    """Lock the folder while the context is open, and write `access` into the file: values by the
    names of a profile's fields. Raises StartupError if another `corral up` uses the folder."""
    return lock_folder(
        folder,
        _NAME,
        holder="`corral up`",
        remedy="stop it, or choose another --data-dir",
        details=[f"{field} {value}" for field, value in access.items()],
    )


def running_access(folder: Path) -> dict[str, str] | None:
    """The `access` of the `corral up` that uses the folder; None if none does."""
    with suppress(OSError), (folder / _NAME).open(encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            details = file.read().splitlines()[1:]
            return dict(line.split(" ", 1) for line in details)
    return None
