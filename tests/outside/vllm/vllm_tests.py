"""Runs `vllm_program.py` on the tests in vLLM's source package."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.outside.packages import Package, package_folder

ROOT: Final = Path(__file__).resolve().parents[3]
PROGRAM: Final = Path(__file__).with_name("vllm_program.py")
VLLM: Final = Package(
    "vllm",
    "0.33.0",
    "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
    re.compile(
        r"(tests/(__init__\.py|(tool_parsers|reasoning|parser)/)|vllm/(parser|tool_parsers)/).*"
    ),
)


def run_vllm_tests(*options: str) -> dict[str, Any]:
    """The program's report; `--splits` also splits the texts, which takes most of the time."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "gen")))}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.json")
        ended = subprocess.run(
            [sys.executable, PROGRAM, package_folder(VLLM), path, *options],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        found: dict[str, Any] = json.loads(path.read_text())
    return found
