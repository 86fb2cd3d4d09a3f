"""Maps ids of an export to ids of imported objects, in a file, so that imports can be repeated."""

from pathlib import Path
from typing import Self

import orjson


class IdMap:
    """The map of an export for one server and project. Lines of other targets stay in the file."""

    def __init__(self, path: Path, target: str, *, is_stored: bool = True) -> None:
        """`target` identifies the server and project. With `is_stored` False the file is only read:
        what is added is forgotten at the end."""
        self.path = path
        self.is_stored = is_stored
        self._target = target
        self._new_ids: dict[str, str] = {}
        content = path.read_bytes() if path.exists() else b""
        for line in content.splitlines():
            self._load_line(line)
        # Completes a line that was cut off when an import was killed.
        self._separator = b"" if content.endswith(b"\n") or not content else b"\n"

    def __enter__(self) -> Self:
        if self.is_stored:
            self._file = self.path.open("ab")
            self._file.write(self._separator)
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_stored:
            self._file.close()

    def get(self, old: str) -> str | None:
        """Return the id of the imported object, or None if it was not imported."""
        return self._new_ids.get(old)

    def add(self, pairs: dict[str, str]) -> None:
        """Record imported objects: new ids by old ids."""
        self._new_ids |= pairs
        if not self.is_stored:
            return
        lines = [
            orjson.dumps({"target": self._target, "from": old, "to": new}) + b"\n"
            for old, new in pairs.items()
        ]
        self._file.write(b"".join(lines))
        self._file.flush()

    def _load_line(self, line: bytes) -> None:
        try:
            pair = orjson.loads(line)
            target, old, new = pair["target"], pair["from"], pair["to"]
        except (orjson.JSONDecodeError, KeyError, TypeError):  # the line was cut off
            return
        if target == self._target:
            self._new_ids[old] = new
