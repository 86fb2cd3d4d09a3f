"""Processor time and memory of processes, from /proc. On other systems every figure is 0."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

PROC = Path("/proc")


def cpu_seconds(role: str, pid: int) -> dict[str, float]:
    """Return the user and system time so far in seconds.

    The process is reported as `role`, the sum of its descendants as `role/children`.
    """
    seconds = {role: _seconds(pid)}
    children = sum(_seconds(child) for child in _descendants(pid))
    return seconds | {f"{role}/children": children} if children else seconds


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, or 0 if it is unknown."""
    try:
        pages = int((PROC / str(pid) / "statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_by_process(processes: Mapping[str, int]) -> dict[tuple[int, str], int]:
    """Return the peak resident memory of processes, given by role, and of their descendants.

    Keys are process ids with names: the role, or `role/module` for a descendant.
    """
    found = {(pid, role): peak_resident_bytes(pid) for role, pid in processes.items()}
    for role, pid in processes.items():
        for child in _descendants(pid):
            found[child, f"{role}/{_module(child)}"] = peak_resident_bytes(child)
    return found


def reset_peaks(processes: Mapping[str, int]) -> None:
    """Let the peaks of these processes and their descendants begin anew (proc(5), clear_refs)."""
    for pid in processes.values():
        for each in (pid, *_descendants(pid)):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                (PROC / str(each) / "clear_refs").write_text("5")


def _module(pid: int) -> str:
    """The module that a Python process runs, or "child"."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().decode().split("\0")
    except OSError:
        return "child"
    return words[words.index("-m") + 1] if "-m" in words else "child"


def peak_resident_bytes(pid: int) -> int:
    """Return the peak resident memory of a process since its start or `reset_peaks`, or 0 if it is
    unknown."""
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def mapped_bytes(pid: int, file: Path) -> int:
    """Return the resident bytes of a file that a process has mapped, or 0 if unknown."""
    try:
        lines = (PROC / str(pid) / "smaps").read_text().splitlines()
    except OSError:
        return 0
    kib, is_inside = 0, False
    for line in lines:
        if "-" in line.partition(" ")[0]:  # header of a mapping: 7f57-7f58 r--s 0 fe:00 1 /file
            is_inside = line.endswith(f" {file.resolve()}")
        elif is_inside and line.startswith("Rss:"):
            kib += int(line.split()[1])
    return kib * 1024


def _descendants(pid: int) -> list[int]:
    try:
        tasks = list((PROC / str(pid) / "task").iterdir())
        children = [int(c) for task in tasks for c in (task / "children").read_text().split()]
    except OSError:  # the process ended, or this is not Linux
        return []
    return children + [below for child in children for below in _descendants(child)]


def _seconds(pid: int) -> float:
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    ticks = int(fields[11]) + int(fields[12])  # utime, stime
    return ticks / os.sysconf("SC_CLK_TCK")
