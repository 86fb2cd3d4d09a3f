"""Write the public surface of Corral to a file, and compare two such files.

    python -m tools.surface write FILE.json
    python -m tools.surface compare OLD.json NEW.json [--prose]     exit code 1 if they differ

The surface is what clients, operators and scripts depend on. Prose (descriptions, help texts,
messages) is a separate part that `compare` reads only with --prose. An entry is a value under its
path, such as `/settings/gateway/listen/schema/default`.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from corral_cli.__main__ import cli
from svc_kit.errors import ERROR_CLASSES
from tools.rpc_methods import METHODS
from tools.surface_api import all_metrics, error, openapi, protos
from tools.surface_operations import SERVICES, commands, exit_codes, files, logs, scripts, settings

PROSE_KEYS: Final = frozenset(
    {"title", "description", "summary", "help", "short_help", "epilog", "message"}
)


def read_surface() -> dict[str, Any]:
    """Read the whole surface, including prose, as JSON types."""
    sections = {
        "openapi": asyncio.run(openapi()),
        "protos": protos(),
        "scopes": {path: str(options.scope) for path, options in METHODS.items()},
        "errors": {cls.reason: error(cls) for cls in ERROR_CLASSES},
        "metrics": all_metrics(),
        "settings": {cls.toml_table: settings(cls) for cls in SERVICES},
        "files": files(),
        "commands": dict(commands(cli, "corral")),
        "exit_codes": exit_codes(),
        "scripts": scripts(),
        "logs": logs(),
    }
    return dict(json.loads(json.dumps(sections, default=str)))


def entries(node: Any, path: str = "") -> Iterator[tuple[str, Any, bool]]:
    """Yield every value as (path, value, whether it is prose)."""
    if isinstance(node, list) and any(isinstance(each, dict) for each in node):
        node = dict(enumerate(node))
    if isinstance(node, dict) and node:
        for key, value in node.items():
            if key in PROSE_KEYS and isinstance(value, str):
                yield f"{path}/{key}", value, True
            else:
                yield from entries(value, f"{path}/{key}")
    else:
        yield path, node, False


def read_parts() -> dict[str, dict[str, Any]]:
    """Entries of this code's surface, with prose in a separate part."""
    rows = list(entries(read_surface()))
    return {
        "surface": {name: value for name, value, is_prose in rows if not is_prose},
        "prose": {name: value for name, value, is_prose in rows if is_prose},
    }


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """One line for each entry that was added, removed or changed."""
    lines = []
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            lines.append(f"- {name}: {json.dumps(old[name])}")
        elif name not in old:
            lines.append(f"+ {name}: {json.dumps(new[name])}")
        elif old[name] != new[name]:
            lines.append(f"~ {name}: {json.dumps(old[name])} -> {json.dumps(new[name])}")
    return lines


def main(arguments: list[str]) -> int:
    """Run `write` or `compare`. Returns the exit code."""
    match arguments:
        case ["write", file]:
            text = json.dumps(read_parts(), indent=1, sort_keys=True, ensure_ascii=False)
            Path(file).write_text(f"{text}\n", encoding="utf-8")
            return 0
        case ["compare", old_file, new_file, *flags] if flags in ([], ["--prose"]):
            old, new = (json.loads(Path(file).read_text("utf-8")) for file in (old_file, new_file))
            names = ["surface", "prose"] if flags else ["surface"]
            lines = [line for part in names for line in differences(old[part], new[part])]
            print("\n".join(lines) or "no difference")
            return int(bool(lines))
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
