"""The journal of a backup, and the removal of backups.

Each name that a backup creates is in its journal before it is created. So what a killed backup has
left can be told from files of others. A complete backup has a manifest instead; to remove it, its
journal is written again from that, and then the manifest goes first.
"""

import json
import re
from contextlib import suppress
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from typing import Final, NamedTuple, Self

from control_svc.backup.layout import (
    DIGEST,
    ID,
    MANIFEST,
    BackupFolder,
    Manifest,
    file_names,
    write_manifest,
)
from svc_kit.local_files import open_regular

JOURNAL: Final = "journal.jsonl"
_DRAFT: Final = "manifest.part"
_MAX_LINE_BYTES: Final = 1024
_NAME: Final = re.compile(r"\w[\w.-]*", re.ASCII)


class NewBackup:
    """A backup that is being written."""

    def __init__(self, folder: BackupFolder, installation: str, now: datetime) -> None:
        """Create its folder, whose name is its id, and its journal. Raises OSError."""
        self.id = now.astimezone(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        self.path = folder.root / self.id
        self.path.mkdir(mode=0o700)
        self._folder = folder
        self._journal = (self.path / JOURNAL).open("x", buffering=1)
        self._write("installation", installation)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.close()

    def new_file(self, name: str) -> Path:
        """The path of a file that is created next. Raises OSError."""
        self._write("file", name)
        return self.path / name

    def begin_blob(self, digest: str) -> None:
        """Write down a blob that is copied next; remove what a killed copy has left of it.

        Raises OSError.
        """
        self._write("blob", digest)
        (self._folder.root / "blobs" / "incoming" / digest).unlink(missing_ok=True)

    def complete(self, manifest: Manifest) -> None:
        """Write the manifest and remove the journal. Raises OSError."""
        draft = self.new_file(_DRAFT)
        write_manifest(draft, manifest)
        draft.rename(self.path / MANIFEST)
        self._journal.close()
        (self.path / JOURNAL).unlink()

    def _write(self, kind: str, name: str) -> None:
        self._journal.write(json.dumps([kind, name]) + "\n")


class _Names(NamedTuple):
    installation: str
    files: set[str]
    blobs: set[str]


def prune(folder: BackupFolder, installation: str, keep: int | None) -> None:
    """Remove what killed backups of an installation have left, and all but its newest `keep`
    complete ones, unless it is None; and blobs that only these have. Files of others stay.

    Raises OSError; StartupError, and removes nothing, if what other backups need cannot be read.
    """
    removed = _journals(folder, installation)
    if keep is None and not removed:
        return
    manifests = {backup_id: folder.read(backup_id) for backup_id in folder.ids()}
    own = [each for each in manifests if manifests[each].installation == installation]
    ended = [] if keep is None else [manifests.pop(backup_id) for backup_id in own[:-keep]]
    used = set[str]().union(*(_digests(folder, backup_id) for backup_id in manifests))
    for manifest in ended:
        files = file_names(manifest.database, manifest.tables)
        names = _Names(installation, files, _digests(folder, manifest.backup_id))
        removed[manifest.backup_id] = names
    for manifest in ended:
        place = folder.root / manifest.backup_id
        _write_journal(place / JOURNAL, removed[manifest.backup_id])
        (place / MANIFEST).unlink()
    for backup_id, names in removed.items():
        _remove(folder, backup_id, names, used)


def _digests(folder: BackupFolder, backup_id: str) -> set[str]:
    return {entry.sha256 for group in folder.entries(backup_id) for entry in group}


def remove_files(folder: BackupFolder, installation: str) -> None:
    """Remove the files that killed backups of an installation have left, but not their blobs, which
    the next backup may need. Raises OSError.
    """
    for backup_id, names in _journals(folder, installation).items():
        _remove_files(folder, backup_id, names)


def _remove_files(folder: BackupFolder, backup_id: str, names: _Names) -> None:
    for digest in names.blobs:
        _unlink(folder.root / "blobs" / "incoming" / digest)
    for name in names.files:
        _unlink(folder.root / backup_id / name)


def _remove(folder: BackupFolder, backup_id: str, names: _Names, used: set[str]) -> None:
    _remove_files(folder, backup_id, names)
    for digest in names.blobs - used:
        _unlink(folder.root / "blobs" / digest[:2] / digest)
    place = folder.root / backup_id
    (place / JOURNAL).unlink()
    if not any(place.iterdir()):  # else others have put files there
        place.rmdir()


def _unlink(path: Path) -> None:
    with suppress(FileNotFoundError, IsADirectoryError):
        path.unlink()


def _journals(folder: BackupFolder, installation: str) -> dict[str, _Names]:
    """The journals of incomplete backups of an installation, by id."""
    complete, found = folder.ids(), dict[str, _Names]()
    for path in folder.root.glob(f"*/{JOURNAL}"):
        backup_id = path.parent.name
        if ID.fullmatch(backup_id) and backup_id not in complete:
            names = _read_journal(path)
            if names.installation == installation:
                found[backup_id] = names
    return found


def _read_journal(path: Path) -> _Names:
    """Read a journal, whose last line may be incomplete; without an owner if it is none."""
    owner, files, blobs = "", set[str](), set[str]()
    try:
        with BufferedReader(open_regular(path)) as file:
            while (line := file.readline(_MAX_LINE_BYTES)).endswith(b"\n"):
                match json.loads(line):
                    case ["installation", str(name)]:
                        owner = name
                    case ["file", str(name)] if _NAME.fullmatch(name):
                        files.add(name)
                    case ["blob", str(name)] if DIGEST.fullmatch(name):
                        blobs.add(name)
                    case _:
                        return _Names("", set(), set())
    except (OSError, ValueError, RecursionError):
        return _Names("", set(), set())
    return _Names(owner, files, blobs)


def _write_journal(path: Path, names: _Names) -> None:
    path.unlink(missing_ok=True)
    lines = [("file", name) for name in sorted(names.files)]
    lines += [("blob", digest) for digest in sorted(names.blobs)]
    with path.open("x") as file:
        for line in [("installation", names.installation), *lines]:
            file.write(json.dumps(line) + "\n")
