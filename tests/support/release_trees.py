"""Services of the last release, or of this tree, as real processes.

The last release is the first commit that has the version of `pyproject.toml`. Its services run from
an export of that commit, with the packages of this environment.
"""

import io
import os
import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path
from typing import Final

import pytest

from tests.support.debian_packages import ROOT
from tests.support.processes import Program
from tests.support.services import CORRAL, Settings, environment

PATHS: Final = (
    *("inference_svc", "control_svc", "gateway", "svc_kit", "dialects", "corral_cli"),
    *("model_files", "migrations", "gen"),
)
"""What services read of a source tree."""


def export_last_release(folder: Path) -> None:
    """Write its sources to a folder. Skips the test if this tree has no history."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    line = f'version = "{version}"'
    found = _git("log", "--reverse", "--format=%H", f"-S{line}", "--", "pyproject.toml")
    if not found:
        pytest.skip("this tree has no history, so the last release is not known")
    commit = found.split()[0].decode()
    listed = _git("ls-tree", "--name-only", commit) or b""
    paths = [each for each in PATHS if each.encode() in listed.split()]
    packed = _git("archive", commit, *paths)
    if packed is None:
        pytest.skip("this clone has no history before the last release")
    with tarfile.open(fileobj=io.BytesIO(packed)) as sources:
        sources.extractall(folder, filter="data")


def serve(service: str, data: Path, sources: Path, settings: Settings) -> Program:
    """Start a service of a source tree, beside its data folder."""
    python_path = os.pathsep.join((str(sources), str(sources / "gen")))
    variables = environment(data, **{service: settings})
    return Program(
        [CORRAL, "serve", service],
        environment={**variables, "PYTHONPATH": python_path},
        directory=data.parent,
    )


def _git(*arguments: str) -> bytes | None:
    """What git prints, or None if it cannot say or is not installed."""
    if shutil.which("git") is None:
        return None
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else None
