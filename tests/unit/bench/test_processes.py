"""Memory of processes."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

from bench.processes import mapped_bytes, peak_by_process, reset_peaks, resident_bytes


def test_pages_of_a_mapped_file_are_counted(tmp_path: Path) -> None:
    """Only pages of the mapped file."""
    file = tmp_path / "weights"
    file.write_bytes(b"x" * 3 * mmap.PAGESIZE)

    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        assert bytes(pages)
        counted = mapped_bytes(os.getpid(), file)

    assert counted == 3 * mmap.PAGESIZE
    assert mapped_bytes(os.getpid(), tmp_path / "other") == 0


def test_children_are_named_by_their_modules() -> None:
    """Each process by itself, with its role."""
    work = "print(1, flush=True); input()"
    command = [sys.executable, "-m", "timeit", "-n", "1", "-r", "1", work]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()  # it runs its module
        found = peak_by_process({"tests": os.getpid()})
        child.communicate(b"\n")

    assert found[os.getpid(), "tests"] > 0
    assert (child.pid, "tests/timeit") in found


def test_a_process_that_ended_has_no_memory() -> None:
    """It may end between two samples."""
    assert resident_bytes(2**22 + 1) == 0
    assert mapped_bytes(2**22 + 1, Path("x")) == 0


def test_a_peak_is_that_since_it_was_reset() -> None:
    """Memory that is returned counts until then."""
    size = 64 * 2**20
    processes = {"tests": os.getpid()}
    reset_peaks(processes)
    before = peak_by_process(processes)[os.getpid(), "tests"]
    mmap.mmap(-1, size).write(b"x" * size)
    grown = peak_by_process(processes)[os.getpid(), "tests"]
    reset_peaks(processes)

    assert grown >= before + size
    assert peak_by_process(processes)[os.getpid(), "tests"] < before + size
