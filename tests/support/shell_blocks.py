"""Runs the shell blocks of pages as they are written, on their default ports."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.test_house_rules import ROOT

_BLOCK: Final = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ALONE: Final = ["unshare", "--map-root-user", "--net"]
"""A network of its own, in which every port is free."""
WAIT: Final = "curl --silent --fail --retry 90 --retry-delay 1 --retry-all-errors --max-time 90"
"""Waits until a URL answers 200."""
_QUICK_START: Final = {
    "CORRAL_INFERENCE_ENGINE__THREADS": "1",
    "CORRAL_INFERENCE_ENGINE__WARM_UP_S": "0",
    "CORRAL_INFERENCE_MEDIA__ENCODER_THREADS": "1",
}
"""An engine that measures nothing when it starts, which takes all cores for seconds."""

needs_own_network = pytest.mark.skipif(
    shutil.which("curl") is None
    or shutil.which("unshare") is None
    or subprocess.run([*_ALONE, "ip", "link"], capture_output=True, check=False).returncode != 0,
    reason="needs curl, ip and the right to have a network of its own",
)


def blocks(page: str, heading: str = "") -> list[str]:
    """The shell blocks below a heading of the second level, by default those above the first."""
    text = (ROOT / page).read_text("utf-8")
    below = text.split(f"\n## {heading}\n")[1] if heading else text
    return _BLOCK.findall(below.split("\n## ")[0])


def run_script(lines: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run lines of a shell in a folder, which is also the home, and has the repository's `.venv`
    and, as `repository`, its files. What is left running is stopped.

    Raises AssertionError with the output and all files *.log if a line fails. stderr is in stdout.
    """
    (folder / "repository").symlink_to(ROOT)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    start = "set -e; ip link set lo up; trap 'jobs -p | xargs -r kill; wait' EXIT"
    environment = {
        "HOME": str(folder),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "gen")]),
        **_QUICK_START,
    }
    result = subprocess.run(
        [*_ALONE, "bash", "-c", "\n".join([start, *lines])],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    logs = [path.read_text("utf-8") for path in folder.rglob("*.log")]
    assert result.returncode == 0, "\n".join([result.stdout, *logs])
    return result
