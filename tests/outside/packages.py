"""Packages of other projects, which pip downloads and whose hashes it checks.

What tests need of one is kept in the user's cache. Tests that need a package are skipped, with
pip's reason, where it cannot be downloaded, except in CI (the variable `CI`).
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pytest


class Package(NamedTuple):
    """`kept` matches the paths that are kept, which are below the folder `root` of the package.
    `wheel` has the options that select a wheel, where the sources are in one."""

    name: str
    version: str
    sha256: str
    kept: re.Pattern[str]
    root: str = "."
    wheel: tuple[str, ...] = ()


@cache
def package_folder(package: Package) -> Path:
    """The folder of what is kept. Skips the calling test where it cannot be downloaded."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = sha256(package.kept.pattern.encode()).hexdigest()
    name = f"{package.name}-{package.version}-{package.sha256[:16]}-{kept[:8]}"
    folder = caches / "corral" / "sources" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other workers wait for the same download
        if not folder.is_dir():
            _download(package, folder)
    return folder


def _download(package: Package, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as text:
        requirement = Path(text, "source.txt")
        requirement.write_text(
            f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n"
        )
        # pip checks and unpacks the package, then asks it for its metadata. That fails where its
        # build needs other packages; `--no-clean` leaves what was unpacked.
        chosen = package.wheel or ("--no-binary", package.name, "--no-build-isolation")
        options = ["--no-deps", *chosen, "--require-hashes", "--no-clean"]
        options += ["--dest", text, "--requirement", str(requirement)]
        ended = subprocess.run(
            [sys.executable, "-m", "pip", "--no-input", "download", "--quiet", *options],
            env={**os.environ, "TMPDIR": text},
            capture_output=True,
            text=True,
            check=False,
        )
        for path in Path(text).glob("*.whl"):
            with zipfile.ZipFile(path) as archive:
                archive.extractall(Path(text, "pip-download-wheel", "unpacked"))
        unpacked = [each for each in Path(text).glob("pip-download-*/*") if _is_package(each)]
        if not unpacked:
            reason = f"the package {package.name} cannot be had: {ended.stderr.strip()[-300:]}"
            if os.environ.get("CI"):
                pytest.fail(reason)
            pytest.skip(reason)
        root, kept = unpacked[0] / package.root, Path(text, "kept")
        for path in root.rglob("*"):
            inner = path.relative_to(root)
            if path.is_file() and package.kept.match(inner.as_posix()):
                (kept / inner).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, kept / inner)
        kept.rename(folder)


def _is_package(folder: Path) -> bool:
    return (folder / "PKG-INFO").is_file() or any(folder.glob("*.dist-info"))
