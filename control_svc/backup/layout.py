"""The layout of a backup folder, and the manifest of each backup in it.

blobs/ab/SHA256       the bytes of blobs, shared by all backups in the folder
ID/manifest.json      written last: without it the backup is incomplete
ID/control.sqlite3    the copy of SQLite; of PostgreSQL, TABLE.copy.gz for each table
ID/blobs.jsonl.gz     key, size and SHA-256 of each blob that the copy refers to
"""

import gzip
import hashlib
import json
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import TypeAdapter, ValidationError

from control_svc.backup.references import ROWS_AT_ONCE
from control_svc.blobs.local import FolderBlobs
from svc_kit.lifecycle import StartupError
from svc_kit.local_files import atomic_file

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
BLOB_LIST: Final = "blobs.jsonl.gz"
_BLOBS: Final = "blobs"
_ID: Final = re.compile(r"\d{8}T\d{6}\.\d{6}Z")


class BlobEntry(NamedTuple):
    """A blob of a backup."""

    key: str
    size_bytes: int
    sha256: str


class LostBlob(NamedTuple):
    """A blob that the installation itself had lost."""

    key: str
    object: str
    problem: str


class TableCopy(NamedTuple):
    """The columns of a table in its file."""

    table: str
    columns: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a backup contains."""

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


_MANIFEST: Final = TypeAdapter(Manifest)


class BackupFolder:
    """A folder with backups, whose blobs they share."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.blobs = FolderBlobs(root / _BLOBS)
        """Their keys are their digests."""

    def prepare(self) -> None:
        """Create the folders; remove what an interrupted backup was writing. Raises OSError."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.blobs.prepare()
        for stale in (self.root / _BLOBS / "incoming").iterdir():
            stale.unlink()
        self._remove_others(self.ids())

    def create(self, now: datetime) -> Path:
        """Create the folder of a new backup; its name is the id. Raises OSError."""
        folder = self.root / now.astimezone(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        folder.mkdir(mode=0o700)
        return folder

    def ids(self) -> list[str]:
        """The ids of all complete backups, oldest first."""
        return sorted(path.parent.name for path in self.root.glob(f"*/{MANIFEST}"))

    def write(self, manifest: Manifest) -> None:
        """Complete a backup. Raises OSError."""
        with atomic_file(self.root / manifest.backup_id / MANIFEST) as file:
            file.write(_MANIFEST.dump_json(manifest, indent=2))

    def read(self, backup_id: str | None) -> Manifest:
        """The manifest of a backup, None for the newest. Raises StartupError."""
        ids = self.ids()
        if not ids:
            raise StartupError(f"there is no complete backup in {self.root}")
        if backup_id is not None and backup_id not in ids:
            raise StartupError(f"there is no complete backup {backup_id}: {', '.join(ids)}")
        path = self.root / (backup_id or ids[-1]) / MANIFEST
        try:
            manifest = _MANIFEST.validate_json(path.read_bytes())
        except ValidationError as error:
            raise StartupError(f"{path} is damaged, or of a later release") from error
        if manifest.format != FORMAT:
            raise StartupError(f"{path} has format {manifest.format}; this release reads {FORMAT}")
        return manifest

    def check_files(self, manifest: Manifest) -> None:
        """Raise StartupError if a file of a backup is missing or changed."""
        for name, digest in manifest.files.items():
            path = self.root / manifest.backup_id / name
            if not path.is_file() or file_digest(path) != digest:
                raise StartupError(f"the backup is damaged: {path} is missing or was changed")

    def entries(self, backup_id: str) -> Iterator[list[BlobEntry]]:
        """The blobs of a backup, in groups."""
        with gzip.open(self.root / backup_id / BLOB_LIST, "rt") as file:
            while lines := list(islice(file, ROWS_AT_ONCE)):
                yield [BlobEntry(*json.loads(line)) for line in lines]

    def prune(self, keep: int) -> None:
        """Remove all but the newest `keep` backups, and blobs of none; other files in the folder
        stay. Raises OSError.
        """
        kept = self.ids()[-keep:]
        self._remove_others(kept)
        groups = (group for backup_id in kept for group in self.entries(backup_id))
        used = {entry.sha256 for group in groups for entry in group}
        for path in (self.root / _BLOBS).glob("??/*"):
            if path.name not in used:
                path.unlink()

    def _remove_others(self, kept: Collection[str]) -> None:
        for folder in self.root.iterdir():
            if _ID.fullmatch(folder.name) and folder.name not in kept:
                shutil.rmtree(folder)


def write_lines(path: Path, entries: Iterable[Sequence[object]]) -> None:
    """Write a list of blobs. Raises OSError."""
    with gzip.open(path, "wt", compresslevel=1) as file:
        for entry in entries:
            file.write(json.dumps(entry) + "\n")


def file_digest(path: Path) -> str:
    """The SHA-256 of a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
