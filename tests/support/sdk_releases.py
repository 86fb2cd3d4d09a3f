"""Runs programs with a release of the official SDK.

Older releases are installed in separate folders (`requirements/sdk-*.txt`). A program runs in a
separate process, because a process can import only one `openai`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tests.support.processes import PATIENCE_S

PROGRAMS: Final = Path(__file__).parents[1] / "clients" / "programs"
SDKS: Final = Path(sys.prefix) / "sdks"
NEWEST: Final = "newest"
RELEASES: Final = ("1.109.1", "2.54.0", NEWEST)
"""The last release before each incompatible change, and the one that other tests use."""


def run_program(name: str, release: str, base_url: str) -> dict[str, Any]:
    """Run a program with the variables of the SDK; return the JSON that it prints."""
    environment = {
        **os.environ,
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": "unused",
        "PYTHONPATH": "" if release == NEWEST else str(SDKS / f"sdk-{release}"),
        "NO_PROXY": "127.0.0.1,localhost",
    }
    program = [sys.executable, "-W", "ignore::DeprecationWarning", str(PROGRAMS / name)]
    result = subprocess.run(
        program, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert result.returncode == 0, result.stderr
    output: dict[str, Any] = json.loads(result.stdout)
    used = output.pop("release")
    assert release in (NEWEST, used), f"the program ran with {used}"
    return output
