"""What the system says of a process."""

import mmap
import os
from pathlib import Path

from bench.processes import mapped_bytes, resident_bytes


def test_pages_of_a_mapped_file_are_counted(tmp_path: Path) -> None:
    """Three pages were read; the file's name alone makes no page."""
    file = tmp_path / "weights"
    file.write_bytes(b"x" * 3 * mmap.PAGESIZE)

    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        assert bytes(pages)
        counted = mapped_bytes(os.getpid(), file)

    assert counted == 3 * mmap.PAGESIZE
    assert mapped_bytes(os.getpid(), tmp_path / "other") == 0


def test_a_process_that_is_gone_holds_nothing() -> None:
    """It may end between two looks."""
    assert resident_bytes(2**22 + 1) == 0
    assert mapped_bytes(2**22 + 1, Path("x")) == 0
