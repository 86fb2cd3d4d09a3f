"""The layout of a backup folder, and the manifest of each backup in it.

BACKUPS               the id of the installation whose backups the folder has
blobs/ab/SHA256       the bytes of blobs, shared by all backups in the folder
ID/manifest.json      written last: without it the backup is incomplete
ID/control.sqlite3    the copy of SQLite; of PostgreSQL, TABLE.copy.gz for each table
ID/blobs.jsonl.gz     key, size and SHA-256 of each blob that the copy refers to
ID/journal.jsonl      while a backup is written or removed (`journal.py`)

What is read here may come from anywhere: names, sizes and links are checked.
"""

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import TypeAdapter, ValidationError

from control_svc.backup.references import ROWS_AT_ONCE
from control_svc.blobs.local import FolderBlobs
from control_svc.blobs.store import HOLDER, KEY
from control_svc.db.engine import FILE_NAME
from svc_kit.lifecycle import StartupError
from svc_kit.local_files import open_regular

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
BLOB_LIST: Final = "blobs.jsonl.gz"
LOCK_NAME: Final = "backup.lock"
_BLOBS: Final = "blobs"
_BLOB_FOLDER: Final = re.compile("[0-9a-f]{2}|incoming|suspensions")
_OWNER: Final = "BACKUPS"
ID: Final = HOLDER
DIGEST: Final = re.compile("[0-9a-f]{64}")
_WORD: Final = re.compile(r"[\w.+-]{1,128}", re.ASCII)
_MAX_MANIFEST_BYTES: Final = 1 << 28
_MAX_LINE_BYTES: Final = 4096
_VOLUME_FOLDER: Final = "lost+found"
"""What a new volume has."""


class BlobEntry(NamedTuple):
    key: str
    size_bytes: int
    sha256: str


class LostBlob(NamedTuple):
    """A blob that the installation itself had lost."""

    key: str
    object: str
    problem: str


class TableCopy(NamedTuple):
    table: str
    columns: Sequence[str]

    @property
    def file_name(self) -> str:
        return f"{self.table}.copy.gz"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    format: int = FORMAT
    backup_id: str
    mark: datetime
    """Everything that was acknowledged before this time is in the backup."""
    release: str
    database: str
    """"sqlite" or "postgresql"."""
    revision: str
    """Of the schema."""
    installation: str
    """The id of the database, which its blobs are bound to."""
    tables: Sequence[TableCopy] = ()
    """Of PostgreSQL, parents before children."""
    files: Mapping[str, str]
    """SHA-256 of the other files in the folder, by name."""
    num_blobs: int
    num_bytes: int
    copied_bytes: int
    """Bytes that no earlier backup in the folder had."""
    lost: Sequence[LostBlob] = ()

    def is_sound(self) -> bool:
        """Whether all texts that become names or are printed are words."""
        words = [self.release, self.database, self.revision, self.installation]
        for table in self.tables:
            words += [table.table, *table.columns]
        return all(map(_WORD.fullmatch, words))


_MANIFEST: Final = TypeAdapter(Manifest)


def file_names(database: str, tables: Sequence[TableCopy]) -> set[str]:
    """The names of the files of a backup beside its manifest."""
    copies = {FILE_NAME} if database == "sqlite" else {table.file_name for table in tables}
    return {BLOB_LIST, *copies}


class BackupFolder:
    """A folder with backups, whose blobs they share."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.blobs = FolderBlobs(root / _BLOBS, DIGEST)
        """Their keys are their digests."""

    def check_owner(self, installation: str) -> None:
        """Raise StartupError unless an installation may add backups: the folder is new or empty, or
        has its backups. Writes nothing.
        """
        if not self.root.exists():
            return
        remedy = "choose an empty folder, or one with backups of this installation"
        self.check_links()
        owner = self.root / _OWNER
        if owner.exists() or owner.is_symlink():
            owners = {_read_text(owner)}
        else:  # earlier releases did not write it
            owners = set(self._owners().values())
        if owners - {installation}:
            raise StartupError(f"{self.root} has backups of another installation: {remedy}")
        if not owners and (others := self._foreign_names()):
            raise StartupError(f"{self.root} has other files ({others[0]!r}): {remedy}")

    def claim(self, installation: str) -> None:
        """Create the folders, and write whose backups they have. Raises OSError."""
        owner = self.root / _OWNER
        if not owner.exists():
            with owner.open("x") as file:
                file.write(f"{installation}\n")
        self.blobs.prepare()

    def check_links(self) -> None:
        """Raise StartupError if a folder of a backup or of blobs is a link."""
        blobs = self.root / _BLOBS
        folders = [blobs, *filter(lambda path: ID.fullmatch(path.name), self.root.glob("*Z"))]
        folders += filter(lambda path: _BLOB_FOLDER.fullmatch(path.name), blobs.glob("*"))
        if links := [path for path in folders if path.is_symlink()]:
            raise StartupError(f"{links[0]} is a link: a backup folder has none")

    def ids(self) -> list[str]:
        """The ids of all complete backups, oldest first."""
        paths = self.root.glob(f"*/{MANIFEST}")
        return sorted(path.parent.name for path in paths if ID.fullmatch(path.parent.name))

    def read(self, backup_id: str | None) -> Manifest:
        """The manifest of a backup, None for the newest of the only installation.

        Raises StartupError.
        """
        ids = self.ids()
        if not ids:
            raise StartupError(f"there is no complete backup in {self.root}")
        if backup_id is None and len(set(self._owners().values())) > 1:
            raise StartupError(
                f"{self.root} has backups of several installations: choose one (--list, --backup)"
            )
        if backup_id is not None and backup_id not in ids:
            raise StartupError(f"there is no complete backup {backup_id!r}: {', '.join(ids)}")
        name = backup_id or ids[-1]
        path = self.root / name / MANIFEST
        self.check_links()
        try:
            with open_regular(path) as file:
                content = file.read(_MAX_MANIFEST_BYTES + 1)
            if len(content) > _MAX_MANIFEST_BYTES:
                raise StartupError(f"{path} is too large for a manifest")
            manifest = _MANIFEST.validate_json(content)
        except OSError as error:
            raise StartupError(f"{path} cannot be read: {error.strerror}") from error
        except ValidationError as error:
            raise StartupError(f"{path} is damaged, or of a later release") from error
        if manifest.format != FORMAT:
            raise StartupError(f"{path} has format {manifest.format}; this release reads {FORMAT}")
        if manifest.backup_id != name or not manifest.is_sound():
            raise StartupError(f"{path} is damaged: it is not the manifest of {name}")
        return manifest

    def check_files(self, manifest: Manifest) -> None:
        """Raise StartupError if a file of a backup is missing, changed, or a link."""
        folder = self.root / manifest.backup_id
        names = file_names(manifest.database, manifest.tables)
        if manifest.files.keys() != names:
            raise StartupError(
                f"the backup is damaged: {folder / MANIFEST} must have the SHA-256 of"
                f" {', '.join(sorted(names))}, and of nothing else"
            )
        for name, digest in manifest.files.items():
            try:
                is_same = file_digest(folder / name) == digest
            except OSError:
                is_same = False
            if not is_same:
                raise StartupError(
                    f"the backup is damaged: {folder / name} is missing or was changed"
                )

    def entries(self, backup_id: str) -> Iterator[list[BlobEntry]]:
        """The blobs of a backup, in groups. Raises StartupError."""
        path = self.root / backup_id / BLOB_LIST
        group: list[BlobEntry] = []
        keys: set[str] = set()
        try:
            with open_regular(path) as packed, gzip.open(packed) as file:
                while line := file.readline(_MAX_LINE_BYTES + 1):
                    group.append(entry := _parse_entry(line))
                    if entry.key in keys:
                        raise ValueError(f"it has blob {entry.key} twice")
                    keys.add(entry.key)
                    if len(group) == ROWS_AT_ONCE:
                        yield group
                        group = []
        except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
            raise StartupError(f"the backup is damaged: {path} cannot be read: {error}") from error
        if group:
            yield group

    def _owners(self) -> dict[str, str]:
        """The installations of the backups whose manifests can be read, by id."""
        found: dict[str, str] = {}
        for backup_id in self.ids():
            try:
                found[backup_id] = self.read(backup_id).installation
            except StartupError:
                continue
        return found

    def _foreign_names(self) -> list[str]:
        names = sorted(path.name for path in self.root.iterdir())
        return [name for name in names if name not in (LOCK_NAME, _VOLUME_FOLDER)]


def _read_text(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return file.read(1024).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"{path} cannot be read: {error}") from error


def _parse_entry(line: bytes) -> BlobEntry:
    """Parse a line of a list of blobs. Raises ValueError or RecursionError."""
    if len(line) > _MAX_LINE_BYTES:
        raise ValueError("a line is too long")
    match json.loads(line):
        case [str(key), int(size), str(sha256)] if (
            KEY.fullmatch(key) and DIGEST.fullmatch(sha256) and 0 <= size < 1 << 63
        ):
            return BlobEntry(key, int(size), sha256)
    raise ValueError("a line is not the key, size and SHA-256 of a blob")


def write_manifest(file: Path, manifest: Manifest) -> None:
    """Write a manifest. Raises OSError."""
    file.write_bytes(_MANIFEST.dump_json(manifest, indent=2))


def write_lines(path: Path, entries: Iterable[Sequence[object]]) -> None:
    """Write a list of blobs. Raises OSError."""
    with gzip.open(path, "wt", compresslevel=1) as file:
        for entry in entries:
            file.write(json.dumps(entry) + "\n")


def file_digest(path: Path) -> str:
    """The SHA-256 of a regular file. Raises OSError."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
