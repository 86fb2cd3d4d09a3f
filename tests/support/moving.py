"""Runs `corral export` and `corral import`, and reads id maps."""

import json
import subprocess
import sys
from pathlib import Path

from tests.support.processes import PATIENCE_S
from tests.support.services import Corral


def corral(up: Corral, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "corral_cli", *map(str, words), "--control", up.control]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def read_id_map(path: Path) -> dict[str, str]:
    lines = path.with_name(path.name + ".ids").read_text().splitlines()
    return {pair["from"]: pair["to"] for pair in map(json.loads, lines)}
