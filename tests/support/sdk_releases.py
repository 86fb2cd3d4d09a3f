"""Programs written against a release of the official SDK, run as they are with that release.

Older releases lie beside the one in use, each in a folder of its own (`requirements/sdk-*.txt`); a
program runs in a process of its own, because a process has one `openai`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

PROGRAMS: Final = Path(__file__).parents[1] / "clients" / "programs"
SDKS: Final = Path(sys.prefix) / "sdks"
NEWEST: Final = "newest"
RELEASES: Final = ("1.109.1", "2.54.0", NEWEST)
"""The last one before each incompatible change, and the one that tests use everywhere else."""


def run_program(name: str, release: str, base_url: str) -> dict[str, Any]:
    """What a program prints, which is JSON; it gets nothing but the SDK's own variables."""
    environment = {
        **os.environ,
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": "unused",
        "PYTHONPATH": "" if release == NEWEST else str(SDKS / f"sdk-{release}"),
        "NO_PROXY": "127.0.0.1,localhost",
    }
    program = [sys.executable, "-W", "ignore::DeprecationWarning", str(PROGRAMS / name)]
    ran = subprocess.run(
        program, env=environment, capture_output=True, text=True, check=False, timeout=25
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    used = found.pop("release")
    assert release in (NEWEST, used), f"the program ran with {used}"
    return found
