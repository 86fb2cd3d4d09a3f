"""A container's share of the processor, by a real control group."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_svc.machine import GROUPS

QUOTA_US, PERIOD_US = 150_000, 100_000
ENTER_AND_TELL = """
import os, sys
from pathlib import Path
from inference_svc.machine import available_cores
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
print(available_cores())
"""


@pytest.fixture
def limited() -> Iterator[Path]:
    """The folder of a control group with the quota of a core and a half."""
    version_one = GROUPS / "cpu"
    group = (version_one if version_one.is_dir() else GROUPS) / f"corral-quota-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as problem:
        pytest.skip(f"control groups cannot be made here: {problem}")
    try:
        if version_one.is_dir():
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(QUOTA_US))
        else:
            (group / "cpu.max").write_text(f"{QUOTA_US} {PERIOD_US}")
    except OSError as problem:
        pytest.skip(f"control groups of the processor cannot be limited here: {problem}")
    else:
        yield group
    finally:
        group.rmdir()


def test_a_quota_is_seen_from_inside(limited: Path) -> None:
    """A core and a half are one compute thread, on a machine of any size."""
    ran = subprocess.run(
        [sys.executable, "-c", ENTER_AND_TELL, str(limited)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert int(ran.stdout) == 1
