"""A small file system, and files that fill it."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

MIB = 1024 * 1024


def mount_disk(folder: Path, size_mib: int) -> AbstractContextManager[Path]:
    """Mount a file system of this size; skips the test where that is not allowed."""
    return mount(folder / "disk", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs")


@contextmanager
def mount(disk: Path, *words: str) -> Iterator[Path]:
    """Mount at a new folder; skips the test where that is not allowed."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system; a simulated full disk is tested elsewhere")
    disk.mkdir()
    mount = ["mount", *words, str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow mounts")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def fill(disk: Path, *, leave: int) -> Path:
    """Fill a disk, except for `leave` bytes, with a file that can be deleted again."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file:
        system = os.statvfs(disk)
        num_bytes = system.f_bavail * system.f_frsize - leave
        with suppress(OSError):  # somebody else has taken some of it meanwhile
            while num_bytes > 0:
                num_bytes -= file.write(bytes(min(num_bytes, MIB)))
    return ballast
