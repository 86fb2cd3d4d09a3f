"""A file beside the cache for what an engine is loading: written before the native call.

    DIGEST.loading    an engine is at it
    DIGEST.suspect    a frontend ended while one was at it
    DIGEST.blamed     not to be loaded again by itself

An adapter can abort the engine: that blames it at once. It can also take the whole machine with it,
but a frontend ends for many reasons, so one end of both is a suspicion, and a second one blames.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from inference_svc.engine_client.adapter_registry import LoadMarker

log = logging.getLogger(__name__)
_LOADING: Final = ".loading"
_SUSPECT: Final = ".suspect"
_BLAMED: Final = ".blamed"


class CrashMarker(LoadMarker):
    """Marks in a folder, by digest. What the disk refuses is logged: a load is not given up."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self) -> None:
        """Make the folder, and judge what the frontend before ended in the middle of."""
        with _logged():
            self._folder.mkdir(parents=True, exist_ok=True)
            for mark in self._folder.glob(f"*{_LOADING}"):
                self._suspect(mark.name.removesuffix(_LOADING))

    def begin(self, digest: str) -> None:
        """It is being loaded from now on."""
        with _logged():
            self._path(digest, _LOADING).touch()

    def end(self, digest: str) -> None:
        """It is no more, and no suspicion is left of it."""
        with _logged():
            self._path(digest, _LOADING).unlink(missing_ok=True)
            self._path(digest, _SUSPECT).unlink(missing_ok=True)

    def blame(self, digest: str) -> None:
        """The engine died while it loaded it."""
        log.error("an engine died while it loaded the adapter with the SHA-256 %s", digest)
        with _logged():
            self._path(digest, _BLAMED).touch()
        self.end(digest)

    def is_blamed(self, digest: str) -> bool:
        """Whether an engine died while loading it, without a retry requested since."""
        return self._path(digest, _BLAMED).exists()

    def forgive(self, digest: str) -> None:
        """Clear the marker after a requested retry."""
        with _logged():
            self._path(digest, _BLAMED).unlink(missing_ok=True)

    def _suspect(self, digest: str) -> None:
        suspicion = self._path(digest, _SUSPECT)
        if suspicion.exists():
            self.blame(digest)
        else:
            self._path(digest, _LOADING).rename(suspicion)

    def _path(self, digest: str, suffix: str) -> Path:
        return self._folder / f"{digest}{suffix}"


@contextmanager
def _logged() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        log.warning("the start of an adapter load cannot be recorded: %s", error)
