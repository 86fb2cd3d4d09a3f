"""Processor time and memory of processes. On a busy machine the first tells who had the cores.

Linux only; elsewhere there are no figures and nothing else changes.
"""

import os
from pathlib import Path

PROC = Path("/proc")


def cpu_seconds(role: str, pid: int) -> dict[str, float]:
    """Return seconds of user and system time so far: the process under `role`, all its
    descendants together under `role/children`."""
    found = {role: _seconds(pid)}
    children = sum(_seconds(child) for child in _descendants(pid))
    return found | {f"{role}/children": children} if children else found


def resident_bytes(pid: int) -> int:
    """Return the memory of a process that is in RAM now; 0 where that cannot be told."""
    try:
        pages = int((PROC / str(pid) / "statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_bytes(pid: int) -> int:
    """Return the most memory of a process that ever was in RAM; 0 where that cannot be told."""
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def mapped_bytes(pid: int, file: Path) -> int:
    """Return how much of a file's mappings in a process is in RAM now; 0 where that cannot be
    told."""
    try:
        lines = (PROC / str(pid) / "smaps").read_text().splitlines()
    except OSError:
        return 0
    kib, is_inside = 0, False
    for line in lines:
        if "-" in line.partition(" ")[0]:  # a mapping's own line: 7f57-7f58 r--s 0 fe:00 1 /file
            is_inside = line.endswith(f" {file.resolve()}")
        elif is_inside and line.startswith("Rss:"):
            kib += int(line.split()[1])
    return kib * 1024


def _descendants(pid: int) -> list[int]:
    try:
        tasks = list((PROC / str(pid) / "task").iterdir())
        children = [int(c) for task in tasks for c in (task / "children").read_text().split()]
    except OSError:  # it ended meanwhile, or this is not Linux
        return []
    return children + [below for child in children for below in _descendants(child)]


def _seconds(pid: int) -> float:
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    ticks = int(fields[11]) + int(fields[12])  # utime, stime
    return ticks / os.sysconf("SC_CLK_TCK")
