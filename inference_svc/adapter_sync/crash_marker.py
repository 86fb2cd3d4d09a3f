"""Marker files of adapter loads, written before the native call.

    DIGEST.loading    an engine is loading it
    DIGEST.suspect    the frontend ended during the load
    DIGEST.blamed     not loaded again without a requested retry

An adapter that crashes the engine is blamed at once. It can also crash the machine, but a frontend
ends for many other reasons, so it is only blamed if the frontend ends twice during its load.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from inference_svc.engine_client.adapter_registry import LoadMarker
from svc_kit.local_files import own_files

log = logging.getLogger(__name__)
_LOADING: Final = ".loading"
_SUSPECT: Final = ".suspect"
_BLAMED: Final = ".blamed"
_FILE: Final = re.compile(rf"[0-9a-f]{{64}}\{_LOADING}")
"""What has another name is not ours."""


class CrashMarker(LoadMarker):
    """Marker files in a folder, by digest. Disk errors are logged and do not fail the load."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self) -> None:
        """Create the folder, and process the markers of loads interrupted by the last exit."""
        with _log_errors():
            self._folder.mkdir(parents=True, exist_ok=True)
            for marker in own_files(self._folder, _FILE):
                self._suspect(marker.name.removesuffix(_LOADING))

    def begin(self, digest: str) -> None:
        with _log_errors():
            self._path(digest, _LOADING).touch()

    def end(self, digest: str) -> None:
        """Remove the marks "loading" and "suspect"."""
        with _log_errors():
            self._path(digest, _LOADING).unlink(missing_ok=True)
            self._path(digest, _SUSPECT).unlink(missing_ok=True)

    def blame(self, digest: str) -> None:
        log.error("the engine crashed while it loaded the adapter with SHA-256 %s", digest)
        with _log_errors():
            self._path(digest, _BLAMED).touch()
        self.end(digest)

    def is_blamed(self, digest: str) -> bool:
        """Whether it crashed an engine and no retry was requested since."""
        return self._path(digest, _BLAMED).exists()

    def allow_retry(self, digest: str) -> None:
        """Remove the mark "blamed"."""
        with _log_errors():
            self._path(digest, _BLAMED).unlink(missing_ok=True)

    def _suspect(self, digest: str) -> None:
        suspect = self._path(digest, _SUSPECT)
        if suspect.exists():
            self.blame(digest)
        else:
            self._path(digest, _LOADING).rename(suspect)

    def _path(self, digest: str, suffix: str) -> Path:
        return self._folder / f"{digest}{suffix}"


@contextmanager
def _log_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        log.warning("cannot write the marker of an adapter load: %s", error)
