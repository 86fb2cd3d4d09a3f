"""Raw results: one JSON file per part. They allow resuming a run and rebuilding its report."""

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from bench.measurement import Measurement
from bench.paths import REPOSITORY
from bench.stage import Part
from tools.json_lines import layout


@dataclass(frozen=True)
class Record:
    """Measurements of one part, with the machine, model and commands used."""

    part: str
    machine: dict[str, Any]
    model: str
    threads: int
    is_quick: bool
    commands: dict[str, tuple[str, ...]]
    measurements: tuple[Measurement, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file written by `write`."""
        content = json.loads(path.read_text())
        content.pop("results")
        content["commands"] = {name: tuple(lines) for name, lines in content["commands"].items()}
        content["measurements"] = tuple(Measurement(**one) for one in content["measurements"])
        return cls(**content)

    def write(self, path: Path, part: Part) -> None:
        """Write the record, and the results of the part for readers of the file."""
        results = [result.to_json() for result in part.conclude(self.measurements)]
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(layout(asdict(self) | {"results": results}, together="round"))
        partial.rename(path)


def read_all(folder: Path, parts: Sequence[Part]) -> dict[str, Record]:
    """Return the records in a folder by part name. Parts without a file are omitted."""
    paths = {part.name: folder / f"{part.name}.json" for part in parts}
    return {name: Record.read(path) for name, path in paths.items() if path.exists()}


_POSTGRES: Final = re.compile(r"postgresql://\S*")


def without_paths(commands: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return the command lines without this machine's paths and database addresses."""
    replacements = {str(REPOSITORY): ".", str(Path.home()): "~", tempfile.gettempdir(): "TMP"}

    def redact(line: str) -> str:
        for prefix, name in replacements.items():
            line = line.replace(prefix, name)
        return _POSTGRES.sub("postgresql://", line)

    return {name: tuple(map(redact, lines)) for name, lines in commands.items()}
