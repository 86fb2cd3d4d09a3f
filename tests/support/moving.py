"""Exports and imports in a test: the command, and what an import remembers."""

import json
import subprocess
import sys
from pathlib import Path

from tests.support.services import Corral


def corral(up: Corral, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """The command, at this server's control service."""
    command = [sys.executable, "-m", "corral_cli", *map(str, words), "--control", up.control]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=25)


def ids_in(path: Path) -> dict[str, str]:
    """The id map of an import."""
    lines = path.with_name(path.name + ".ids").read_text().splitlines()
    return {pair["from"]: pair["to"] for pair in map(json.loads, lines)}
