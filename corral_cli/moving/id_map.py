"""Which object here an object of an export has become, so that an import is done once.

A file beside the export, to which a line is added for each object as soon as it is here. An import
that was broken off, or that is started again, goes on behind it.
"""

from pathlib import Path
from types import TracebackType
from typing import Self

import orjson


class IdMap:
    """The map of an export for one server and project; others' lines in the file stay."""

    def __init__(self, path: Path, target: str) -> None:
        """`target` says which server and project is meant."""
        self._path = path
        self._target = target
        self._known: dict[str, str] = {}
        if path.exists():
            for line in path.read_bytes().splitlines():
                self._take(line)

    def __enter__(self) -> Self:
        self._written = self._path.open("ab")
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
        except orjson.JSONDecodeError:  # the end of a line that was being written
            return
        if pair["target"] == self._target:
            self._known[pair["from"]] = pair["to"]
