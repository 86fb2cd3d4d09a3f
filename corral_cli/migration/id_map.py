"""Maps ids of an export to the ids of imported objects, in a file, so that an import can be
repeated.
"""

from pathlib import Path
from types import TracebackType
from typing import Self

import orjson


class IdMap:
    """The map of an export for one server and project; others' lines in the file stay."""

    def __init__(self, path: Path, target: str) -> None:
        """`target` identifies the server and project."""
        self.path = path
        self._target = target
        self._known: dict[str, str] = {}
        there = path.read_bytes() if path.exists() else b""
        for line in there.splitlines():
            self._take(line)
        # A line that was being written when an import was killed must not take the next one along.
        self._gap = b"" if there.endswith(b"\n") or not there else b"\n"

    def __enter__(self) -> Self:
        self._written = self.path.open("ab")
        self._written.write(self._gap)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._written.close()

    def get(self, old: str) -> str | None:
        """What an object has become; None: it is not here yet."""
        return self._known.get(old)

    def add(self, pairs: dict[str, str]) -> None:
        """Objects are here now, by their old ids."""
        self._known |= pairs
        lines = [
            orjson.dumps({"target": self._target, "from": old, "to": new}) + b"\n"
            for old, new in pairs.items()
        ]
        self._written.write(b"".join(lines))
        self._written.flush()

    def _take(self, line: bytes) -> None:
        try:
            pair = orjson.loads(line)
            target, old, new = pair["target"], pair["from"], pair["to"]
        except (orjson.JSONDecodeError, KeyError, TypeError):  # it was being written
            return
        if target == self._target:
            self._known[old] = new
