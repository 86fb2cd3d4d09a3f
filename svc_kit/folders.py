"""Paths from callers: only inside folders that an operator has named."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from svc_kit.errors import InvalidField


class AllowedFolders:
    """The folders that files may come from."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = [folder.expanduser().resolve() for folder in folders]

    def find(self, field: str, path: str) -> Path:
        """The file, in one of the folders: links and ".." lead nowhere else.

        Raises `InvalidField`: a path outside of all is refused without a word on what is there.
        """
        with suppress(OSError, ValueError):  # no name that a file could have
            for folder in self._folders:
                found = (folder / path).resolve()
                if found.is_relative_to(folder) and found.is_file():
                    return found
        raise InvalidField(
            field=field, problem="there is no such file in the folders that adapters may come from"
        )
