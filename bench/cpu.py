"""Processor time of a process and its children: on a busy machine it tells who had the cores.

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
