"""Keeps the digests of model files, so that a service which starts again knows them at once."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from inference_svc.models.file_identity import FileStamp, hash_files, verify_files
from svc_kit.local_files import atomic_file

_log = logging.getLogger(__name__)
_MAX_MODELS: Final = 256


class KnownDigests:
    """The digests that this and earlier processes have computed, in a file, by the stamps of the
    model's files: one with another inode, size or time is hashed again. Methods block."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def digest(self, stamps: Sequence[FileStamp]) -> str:
        """Return the SHA-256 of the concatenated files, computed if it is not known. Raises
        `ModelFileInvalid` if a file differs from its stamp."""
        known, name = self._read(), json.dumps([[str(each.path), *each[1:]] for each in stamps])
        if name in known:
            verify_files(stamps)
            return known[name]
        known[name] = hash_files(stamps)
        self._write(dict(list(known.items())[-_MAX_MODELS:]))
        return known[name]

    def _read(self) -> dict[str, str]:
        """What was written; nothing if it cannot be read."""
        try:
            known = json.loads(self._path.read_bytes())
            return {str(name): bytes.fromhex(value).hex() for name, value in known.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as problem:
            _log.warning("%s cannot be read, and is written anew: %s", self._path, problem)
            return {}

    def _write(self, known: dict[str, str]) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(self._path) as file:
                file.write(json.dumps(known).encode())
        except OSError as problem:
            _log.warning("digests of models are not kept: %s", problem)
