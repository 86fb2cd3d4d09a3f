"""A file beside the cache for what an engine is loading: written before the native call.

An adapter can abort the engine, and the engine can take the frontend's machine with it. What was
being loaded then is not loaded again by itself, also by a frontend that knows nothing else of it.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_LOADING: Final = ".loading"
_BLAMED: Final = ".blamed"


class FileMarks:
    """Marks in a folder, by digest. What the disk refuses is logged: a load is not given up."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self) -> None:
        """Make the folder. What is still marked as loading took everything down with it."""
        with _logged():
            self._folder.mkdir(parents=True, exist_ok=True)
            for mark in self._folder.glob(f"*{_LOADING}"):
                self.blame(mark.name.removesuffix(_LOADING))

    def begin(self, digest: str) -> None:
        """It is being loaded from now on."""
        with _logged():
            self._path(digest, _LOADING).touch()

    def end(self, digest: str) -> None:
        """It is no more."""
        with _logged():
            self._path(digest, _LOADING).unlink(missing_ok=True)

    def blame(self, digest: str) -> None:
        """The engine died while it loaded it."""
        log.error("an engine died while it loaded the adapter with the SHA-256 %s", digest)
        with _logged():
            self._path(digest, _BLAMED).touch()
            self._path(digest, _LOADING).unlink(missing_ok=True)

    def is_blamed(self, digest: str) -> bool:
        """Whether an engine has died while it loaded it, and nobody has asked again since."""
        return self._path(digest, _BLAMED).exists()

    def forgive(self, digest: str) -> None:
        """Somebody asks again."""
        with _logged():
            self._path(digest, _BLAMED).unlink(missing_ok=True)

    def _path(self, digest: str, suffix: str) -> Path:
        return self._folder / f"{digest}{suffix}"


@contextmanager
def _logged() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        log.warning("a load cannot be marked: %s", error)
