"""Local files: disk errors, allowed folders, private and atomic files, locks."""

import errno
import fcntl
import hashlib
import logging
import os
import re
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Final, Self

from svc_kit.errors import InvalidField, StorageFailed
from svc_kit.lifecycle import StartupError, StartupOutage

_log = logging.getLogger(__name__)
_SHORTAGES: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO}
)


def is_shortage(error: OSError) -> bool:
    """Whether the system lacks space, files or memory, or the disk fails."""
    return error.errno in _SHORTAGES


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turn an OSError in the block into StorageFailed, and log it."""
    try:
        yield
    except OSError as error:
        _log.warning("the storage failed: %s", error)
        raise StorageFailed(problem=error.strerror or "input or output failed") from error


UUID: Final = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
"""The form of random ids in names."""


def own_files(folder: Path, form: re.Pattern[str]) -> list[Path]:
    """The regular files of a folder whose whole names have a form, by name; none without a folder.

    Whatever deletes or overwrites files lists them with this, so that files of others stay. Raises
    OSError.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(
                folder / entry.name
                for entry in entries
                if form.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            )
    except (FileNotFoundError, NotADirectoryError):
        return []


def open_regular(path: Path) -> FileIO:
    """Open a file to read it, if it is a regular one: no link, and no FIFO that would block.

    Raises OSError.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return FileIO(handle, "rb")


class AllowedFolders:
    """The folders in which callers may name files."""

    def __init__(self, folders: Iterable[Path], purpose: str = "adapters may be loaded") -> None:
        self._purpose = purpose
        self._folders = [folder.expanduser().resolve() for folder in folders]

    def find(self, field: str, path: str) -> Path:
        """Return the file at a path relative to one of the folders, after following links.

        Raises InvalidField, with the same message whether or not a file outside them exists.
        """
        with suppress(OSError, ValueError):  # raised for invalid file names
            for folder in self._folders:
                file = (folder / path).resolve()
                if file.is_relative_to(folder) and file.is_file():
                    return file
        raise InvalidField(
            field=field, problem=f"no such file in the folders from which {self._purpose}"
        )

    def find_configured(self, field: str, path: str) -> Path:
        """Return the file at a path of the settings, which may be anywhere. Raises InvalidField."""
        with suppress(OSError, ValueError):
            if (file := Path(path).expanduser()).is_file():
                return file
        try:
            return self.find(field, path)
        except InvalidField as error:  # the allowed folders do not matter
            raise InvalidField(field=field, problem="there is no such file") from error


_BLOCK_BYTES = 1 << 20


class PrivateFile:
    """An unnamed temporary file, which processes of this user can open by `path` until `close`."""

    def __init__(self, folder: Path) -> None:
        """Create an empty file on the file system of `folder`. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # open until `close`
        self._sha256 = hashlib.sha256()
        self.size_bytes = 0
        self.path = Path(f"/proc/{os.getpid()}/fd/{self._file.fileno()}")

    @classmethod
    def copy_of(cls, source: Path, folder: Path) -> Self:
        """Copy a file. Raises OSError."""
        copy = cls(folder)
        try:
            with source.open("rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    copy.write(block)
            copy.flush()
        except BaseException:
            copy.close()
            raise
        return copy

    @property
    def digest(self) -> str:
        """The SHA-256 of what was written, in hexadecimal digits."""
        return self._sha256.hexdigest()

    def write(self, block: bytes) -> None:
        """Append; other readers see it after `flush`. Raises OSError."""
        self._file.write(block)
        self._sha256.update(block)
        self.size_bytes += len(block)

    def flush(self) -> None:
        """Make what was written visible to other readers. Raises OSError."""
        self._file.flush()

    def close(self) -> None:
        """Delete the file. Can be called more than once."""
        self._file.close()


_DRAFT: Final = r"\.[0-9a-f]{8}\.part"
_DRAFT_S: Final = 3600.0
"""A draft of this age is written no more."""


def delete_drafts(folder: Path, names: str) -> None:
    """Delete what `atomic_file` has left of files whose names match this pattern, where a process
    was killed. Raises OSError."""
    for draft in own_files(folder, re.compile(f"({names}){_DRAFT}")):
        with suppress(FileNotFoundError):
            if time.time() - draft.stat().st_mtime > _DRAFT_S:
                draft.unlink()


@contextmanager
def atomic_file(output: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `output` when the block succeeds.

    A link stays, and what it leads to is replaced. What killed processes have left of earlier
    attempts is deleted. Raises OSError, also for a device or a FIFO.
    """
    output = output.resolve()
    if output.exists() and not output.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file", str(output))
    with suppress(OSError):  # as in a folder that cannot be listed
        delete_drafts(output.parent, re.escape(output.name))
    part = output.with_name(f"{output.name}.{secrets.token_hex(4)}.part")
    file = part.open("xb")
    try:
        with file:
            yield file
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def lock_folder(folder: Path, name: str, *, holder: str, remedy: str) -> Iterator[None]:
    """Lock a folder, which is created if needed, against other processes while the context is open.

    The first line of the lock file `name` says which process holds it. Raises StartupOutage with
    that and with `holder` (the kind of process) and the `remedy` if another process holds it, and
    StartupError if the folder cannot be used, or if the file is not a lock file.
    """
    path = folder / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise StartupError(f"cannot use the data folder {folder}: {error.strerror}") from error
    with os.fdopen(handle, "r+b", buffering=0) as file:
        try:
            _lock(file)
        except BlockingIOError as error:
            found = _LOCK_TEXT.fullmatch(file.read(_LOCK_BYTES))
            who = found["holder"].decode() if found and found["holder"] else ""
            raise StartupOutage(
                f"another {holder} uses the data folder {folder} ({who or 'unknown'}): {remedy}"
            ) from error
        if _LOCK_TEXT.fullmatch(file.read(_LOCK_BYTES)) is None:
            raise StartupError(f"{path} is not a lock file of Corral: move it away")
        if not _is_at(path, os.fstat(handle)):  # its last holder has removed it meanwhile
            raise StartupOutage(f"another {holder} used the data folder {folder}: try again")
        with suppress(OSError):  # on a full disk; the lock holds without the text
            file.truncate(0)
            file.seek(0)
            since = datetime.now(UTC).isoformat(timespec="seconds")
            file.write(f"process {os.getpid()} on {socket.gethostname()}, since {since}\n".encode())
        yield


_LOCK_BYTES = 8192
_LOOK_S, _LOOK_POLL_S = 0.2, 0.02
_LOCK_TEXT = re.compile(rb"((?P<holder>process \d+ on [^\n]*, since [^\n]*)\n([a-z_]+ [^\n]*\n)*)?")


def _lock(file: FileIO) -> None:
    """Lock a file. Those who only look whether it is locked hold it for a moment. Raises
    BlockingIOError."""
    for _ in range(round(_LOOK_S / _LOOK_POLL_S)):
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_LOOK_POLL_S)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_at(path: Path, status: os.stat_result) -> bool:
    """Whether a path leads to the file with this status."""
    try:
        return os.path.samestat(path.lstat(), status)
    except FileNotFoundError:
        return False


def read_lock(folder: Path, name: str) -> list[str] | None:
    """The lines of a lock file: who holds it, and what the holder added; None if nobody does, or if
    this user cannot read it."""
    try:
        handle = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(handle) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read().splitlines() or ["unknown"]
    return None
