"""Programs of Debian's packages: those on the PATH, or the package, unpacked into `build/`."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]


def find_program(name: str, package: str) -> Path:
    """The path of a program. Skips the test where neither it nor its package can be had: on systems
    other than Debian, and offline."""
    if found := shutil.which(name):
        return Path(found)
    folder = ROOT / "build" / package
    if not folder.is_dir():
        if shutil.which("apt-get") is None:
            pytest.skip(f"{name} is not installed, and there is no apt-get")
        _unpack(package, folder)
    return next(path for path in folder.glob(f"usr/*bin/{name}"))


def libraries_of(program: Path) -> dict[str, str]:
    """The environment in which an unpacked program finds the libraries that came with it."""
    folders = program.parents[1].glob("lib/*/")
    return {"LD_LIBRARY_PATH": ":".join(map(str, folders))}


def _unpack(package: str, folder: Path) -> None:
    """Fetch a package, and what it needs that is not installed; apt verifies their hashes."""
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as text:
        command = ["apt-get", "download", package, *_missing_libraries(package)]
        fetched = subprocess.run(command, cwd=text, check=False, capture_output=True)
        archives = [*Path(text).glob("*.deb")]
        if fetched.returncode or not archives:
            pytest.skip(f"apt-get cannot fetch {package}: {fetched.stderr.decode()[-200:]}")
        unpacked = Path(text) / "unpacked"
        for archive in archives:
            subprocess.run(["dpkg-deb", "-x", archive, unpacked], check=True)
        unpacked.replace(folder)


def _missing_libraries(package: str) -> Iterator[str]:
    command = ["apt-cache", "depends", "--important", package]
    listed = subprocess.run(command, check=False, capture_output=True, text=True).stdout
    for line in listed.splitlines():
        kind, _, name = line.strip().partition(": ")
        if kind == "Depends" and name.startswith("lib") and not _is_installed(name):
            yield name
            yield from _missing_libraries(name)


def _is_installed(package: str) -> bool:
    status = subprocess.run(["dpkg-query", "-W", package], check=False, capture_output=True)
    return status.returncode == 0
