"""How many cores' time this process may use: the machine's, or less inside a container.

A container's quota takes no core away: all are seen, and whoever has used the quota waits for the
rest of its period. Compute threads wait for each other many times in a step, so one too many makes
all of them wait.
https://docs.kernel.org/scheduler/sched-bwc.html
"""

import os
from pathlib import Path

from inference_svc.machine.control_groups import GROUPS, PROC, ControlGroup, enclosing_groups

_PARTS = ("quota", "period")


def available_cores(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Return the number of threads that can compute all the time, at least 1: as many as this
    process has cores to run on, or as the least quota of its control groups (v1 or v2) has whole
    ones."""
    quotas = (_quota(group) for group in enclosing_groups("cpu", proc, groups))
    cores = len(os.sched_getaffinity(0))
    return max(1, min((cores, *(int(quota) for quota in quotas if quota is not None))))


def _quota(group: ControlGroup) -> float | None:
    """The cores of a group's quota; None where it has none."""
    try:
        if group.version == 1:
            texts = [(group.folder / f"cpu.cfs_{name}_us").read_text() for name in _PARTS]
        else:
            texts = (group.folder / "cpu.max").read_text().split()
        quota, period = (int(text) for text in texts)
    except (OSError, ValueError):  # not there, or "max"
        return None
    return quota / period if quota > 0 and period > 0 else None
