"""How much memory is left, on machines and in containers."""

import os
from pathlib import Path

import pytest

from inference_svc.machine import available_memory_bytes, resident_bytes

GIB = 1 << 30


def machine(folder: Path, available: int, groups: str = "") -> tuple[Path, Path]:
    """Lay out /proc and /sys/fs/cgroup in a folder."""
    proc, cgroups = folder / "proc", folder / "cgroup"
    (proc / "self").mkdir(parents=True)
    cgroups.mkdir()
    (proc / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable:  {available // 1024} kB\n")
    (proc / "self" / "cgroup").write_text(groups)
    return proc, cgroups


def group(folder: Path, limit: str, usage: int, cache: int = 0, *, version: int = 2) -> None:
    """Write one control group's files."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {
        2: ("memory.max", "memory.current", "inactive_file"),
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    }[version]
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {cache}\n")


def test_without_a_container_the_machines_memory_counts(tmp_path: Path) -> None:
    """What the kernel calls available is the answer."""
    assert available_memory_bytes(*machine(tmp_path, 5 * GIB, "0::/\n")) == 5 * GIB


def test_a_containers_limit_counts_where_it_is_lower(tmp_path: Path) -> None:
    """What the group has used is gone, but file cache can be dropped."""
    proc, cgroups = machine(tmp_path, 5 * GIB, "0::/\n")
    group(cgroups, str(2 * GIB), 1 * GIB, cache=GIB // 2)

    assert available_memory_bytes(proc, cgroups) == 3 * GIB // 2


def test_every_enclosing_group_counts(tmp_path: Path) -> None:
    """A limit further up holds for us too."""
    proc, cgroups = machine(tmp_path, 5 * GIB, "0::/outer/inner\n")
    group(cgroups / "outer", str(GIB), 0)
    group(cgroups / "outer" / "inner", "max", 0)

    assert available_memory_bytes(proc, cgroups) == GIB


def test_version_1_groups_are_understood(tmp_path: Path) -> None:
    """Older hosts have one folder for each controller, and a huge number for no limit."""
    proc, cgroups = machine(tmp_path, 5 * GIB, "5:cpu:/x\n4:blkio,memory:/job\n")
    group(cgroups / "memory", str(2**63 - 4096), 0, version=1)
    group(cgroups / "memory" / "job", str(GIB), 0, version=1)

    assert available_memory_bytes(proc, cgroups) == GIB


def test_an_overdrawn_group_leaves_nothing(tmp_path: Path) -> None:
    """Never a negative number."""
    proc, cgroups = machine(tmp_path, 5 * GIB, "0::/\n")
    group(cgroups, str(GIB), 2 * GIB)

    assert available_memory_bytes(proc, cgroups) == 0


@pytest.mark.parametrize("present", [True, False])
def test_some_answer_comes_without_the_kernels_files(tmp_path: Path, present: bool) -> None:
    """Elsewhere than on Linux half of the memory is assumed; here there is an answer too."""
    paths = () if present else (tmp_path / "none", tmp_path / "none")

    assert available_memory_bytes(*paths) > 0


def test_a_process_takes_memory_until_it_ends() -> None:
    """One that is not there takes none."""
    assert resident_bytes(os.getpid()) > 1 << 20
    assert resident_bytes(2**30) == 0
