"""The raw results: one JSON file a part, so that a run that was interrupted goes on where it was,
and a report can be made anew from what was measured."""

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from bench.measurement import Measurement, Part
from bench.paths import REPOSITORY


@dataclass(frozen=True)
class Record:
    """Everything one part measured, and with what."""

    part: str
    machine: dict[str, Any]
    model: str
    threads: int
    is_quick: bool
    commands: dict[str, tuple[str, ...]]
    measurements: tuple[Measurement, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `write` wrote."""
        content = json.loads(path.read_text())
        content.pop("results")
        content["commands"] = {name: tuple(lines) for name, lines in content["commands"].items()}
        content["measurements"] = tuple(Measurement(**one) for one in content["measurements"])
        return cls(**content)

    def write(self, path: Path, part: Part) -> None:
        """Write the record, and what the part concludes from it for readers of the file."""
        results = [result.to_json() for result in part.conclude(self.measurements)]
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self) | {"results": results}, indent=1) + "\n")
        partial.rename(path)


def read_all(folder: Path, parts: Sequence[Part]) -> dict[str, Record]:
    """Return the records in a folder by part; parts that were not measured are left out."""
    found = {part.name: folder / f"{part.name}.json" for part in parts}
    return {name: Record.read(path) for name, path in found.items() if path.exists()}


_POSTGRES: Final = re.compile(r"postgresql://\S*")


def without_paths(commands: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return command lines that say nothing of where this machine keeps its files and databases."""
    places = {str(REPOSITORY): ".", str(Path.home()): "~", tempfile.gettempdir(): "TMP"}

    def plain(line: str) -> str:
        for place, name in places.items():
            line = line.replace(place, name)
        return _POSTGRES.sub("postgresql://", line)

    return {name: tuple(map(plain, lines)) for name, lines in commands.items()}
