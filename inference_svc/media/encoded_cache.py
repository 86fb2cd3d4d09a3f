"""The cache of encoded pictures and sounds: their vectors in files, bounded in bytes.

Entries belong to a project or a group of projects, like prefixes of text: others cannot notice what
a project has sent.
"""

import fcntl
import os
import re
import tempfile
from collections import OrderedDict
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from inference_svc.media.model import EncodedMedia
from svc_kit.errors import QueueFull
from svc_kit.local_files import own_files

_PREFIX: Final = "corral-media-"
_FOLDER: Final = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")
_FILE: Final = re.compile(r"[0-9]+\.f32")
_LOCK: Final = "lock"


class VectorFolder:
    """A new folder for vector files that only this user can read, deleted by `close`.

    Folders that a killed process left are deleted when another is created beside them.
    """

    def __init__(self, parent: Path | None = None) -> None:
        """Create the folder in `parent` (default: that of temporary files). Raises OSError."""
        base = parent or Path(tempfile.gettempdir())
        base.mkdir(parents=True, exist_ok=True)
        _delete_abandoned(base)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        self._lock: int | None = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._numbers = count()

    def new_path(self) -> Path:
        """A path that was not used before."""
        return self.path / f"{next(self._numbers)}.f32"

    def close(self) -> None:
        """Delete the folder. Idempotent."""
        with suppress(OSError):
            _delete_files(self.path)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _delete_abandoned(parent: Path) -> None:
    for folder in filter(lambda path: _FOLDER.fullmatch(path.name), parent.glob(f"{_PREFIX}*")):
        with suppress(OSError):
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_own(folder):
                    _delete_files(folder)
            finally:
                os.close(lock)


def _is_own(folder: Path) -> bool:
    """Whether a folder has vectors and an empty lock alone."""
    own = {path.name for path in own_files(folder, _FILE)} | {_LOCK}
    is_same = own == {path.name for path in folder.iterdir()}
    return is_same and not folder.is_symlink() and not (folder / _LOCK).stat().st_size


def _delete_files(folder: Path) -> None:
    """Delete vectors, lock and folder. Raises OSError if others have put files there."""
    for path in (*own_files(folder, _FILE), folder / _LOCK):
        path.unlink()
    folder.rmdir()


class CacheKey(NamedTuple):
    """The owner of an entry, and a digest of what was encoded."""

    owner: str
    content: Hashable


@dataclass(eq=False, slots=True)
class CacheEntry:
    """Encoded media in the cache, `num_users` of which use it now."""

    media: EncodedMedia
    path: Path
    size: int
    num_users: int = 0
    keys: list[CacheKey] = field(default_factory=list)


@dataclass(slots=True)
class CacheStats:
    """Lookups that found an entry, and those that did not."""

    hits: int = 0
    misses: int = 0


class EncodedCache:
    """Entries by keys, of which an entry may have several; the least recently used are deleted.

    An entry in use is never deleted. Files are outside the cache until `add`.
    """

    def __init__(self, max_bytes: int) -> None:
        self.stats = CacheStats()
        self.size = 0
        self.max_bytes = max_bytes
        self._entries: OrderedDict[CacheKey, CacheEntry] = OrderedDict()

    def find(self, key: CacheKey) -> CacheEntry | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._touch(entry)
        return entry

    def add(self, key: CacheKey, media: EncodedMedia, path: Path) -> CacheEntry:
        """Add media with the file of its vectors, used by the caller.

        Raises `QueueFull` and deletes the file if entries in use leave no room.
        """
        size = path.stat().st_size
        self._shrink(self.max_bytes - size)
        if self.size + size > self.max_bytes:
            path.unlink()
            raise QueueFull(
                bound="bytes of pictures and sounds", depth=self.size, limit=self.max_bytes
            )
        entry = CacheEntry(media, path, size, num_users=1)
        self.size += size
        self.add_key(entry, key)
        return entry

    def add_key(self, entry: CacheEntry, key: CacheKey) -> None:
        """Let another key lead to an entry."""
        if key not in entry.keys:
            entry.keys.append(key)
            self._entries[key] = entry

    def acquire(self, entry: CacheEntry) -> None:
        """Keep an entry until as many calls of `release`."""
        entry.num_users += 1

    def release(self, entry: CacheEntry) -> None:
        """End a use."""
        entry.num_users -= 1

    def _touch(self, entry: CacheEntry) -> None:
        for key in entry.keys:
            self._entries.move_to_end(key)

    def _shrink(self, max_bytes: int) -> None:
        """Delete unused entries, the least recently used first, until the size is small enough."""
        for entry in list(dict.fromkeys(self._entries.values())):
            if self.size <= max_bytes:
                return
            if not entry.num_users:
                self._delete(entry)

    def _delete(self, entry: CacheEntry) -> None:
        for key in entry.keys:
            del self._entries[key]
        self.size -= entry.size
        entry.path.unlink(missing_ok=True)
