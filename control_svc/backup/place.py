"""Where a backup folder may be: apart from the data of the installation."""

from collections.abc import Iterator
from pathlib import Path

from control_svc.config import ControlSettings
from control_svc.core import blob_location, data_folder, database_url
from control_svc.db.engine import sqlite_file
from svc_kit.lifecycle import StartupError


def check_place(settings: ControlSettings, root: Path) -> None:
    """Raise StartupError if a backup folder is in the data folder, or has data of the installation.

    Links are followed, and folders are compared by their inodes, so that bind mounts are seen.
    """
    data = data_folder(settings)
    if any(_is_in(root, folder) for folder in _data_folders(settings)):
        raise StartupError(
            f"{root} is inside the data folder {settings.data_dir}: choose a folder outside it,"
            " on another disk if possible"
        )
    file = sqlite_file(database_url(settings), data)
    for path in (*_data_folders(settings), *((file,) if file else ())):
        if _is_in(path, root):
            raise StartupError(f"{root} has the data of the installation ({path}) in it")


def _data_folders(settings: ControlSettings) -> list[Path]:
    """The data folder and those in it, of which each could be mounted elsewhere."""
    data, blobs = data_folder(settings), blob_location(settings)[2]
    folders = [settings.data_dir, data, blobs]
    for parent in folders.copy():
        folders += _subfolders(parent)
    return folders


def _subfolders(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (path for path in folder.iterdir() if path.is_dir())


def _is_in(path: Path, folder: Path) -> bool:
    resolved = path.resolve()
    return any(_is_same(parent, folder.resolve()) for parent in (resolved, *resolved.parents))


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path == other or path.samefile(other)
    except OSError:  # one of them does not exist
        return False
