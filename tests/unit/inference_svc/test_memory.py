"""Tests of the available memory, on machines and in containers."""

import os
from pathlib import Path

import pytest

from inference_svc.machine import available_memory_bytes, resident_bytes

GIB = 1 << 30


def machine(folder: Path, available: int, groups: str = "") -> tuple[Path, Path]:
    """Create /proc and /sys/fs/cgroup in a folder."""
    proc, cgroups = folder / "proc", folder / "cgroup"
    (proc / "self").mkdir(parents=True)
    cgroups.mkdir()
    (proc / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable:  {available // 1024} kB\n")
    (proc / "self" / "cgroup").write_text(groups)
    return proc, cgroups


def group(folder: Path, limit: str, usage: int, cache: int = 0, *, version: int = 2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = {
        2: ("memory.max", "memory.current", "inactive_file"),
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    }[version]
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {cache}\n")


def test_without_a_limit_the_memory_of_the_machine_is_available(tmp_path: Path) -> None:
    """It is the kernel's MemAvailable."""
    assert available_memory_bytes(*machine(tmp_path, 5 * GIB, "0::/\n")) == 5 * GIB


def test_the_remainder_of_a_containers_limit_is_available(tmp_path: Path) -> None:
    """If it is lower; file cache counts as free."""
    proc, cgroups = machine(tmp_path, 5 * GIB, "0::/\n")
    group(cgroups, str(2 * GIB), 1 * GIB, cache=GIB // 2)

    assert available_memory_bytes(proc, cgroups) == 3 * GIB // 2


def test_the_limits_of_all_enclosing_groups_apply(tmp_path: Path) -> None:
    """Not only that of the innermost one."""
    proc, cgroups = machine(tmp_path, 5 * GIB, "0::/outer/inner\n")
    group(cgroups / "outer", str(GIB), 0)
    group(cgroups / "outer" / "inner", "max", 0)

    assert available_memory_bytes(proc, cgroups) == GIB


def test_limits_of_cgroup_v1_are_read(tmp_path: Path) -> None:
    """It has a folder for each controller, and a huge number for no limit."""
    proc, cgroups = machine(tmp_path, 5 * GIB, "5:cpu:/x\n4:blkio,memory:/job\n")
    group(cgroups / "memory", str(2**63 - 4096), 0, version=1)
    group(cgroups / "memory" / "job", str(GIB), 0, version=1)

    assert available_memory_bytes(proc, cgroups) == GIB


def test_available_memory_is_never_negative(tmp_path: Path) -> None:
    """Usage may exceed the limit."""
    proc, cgroups = machine(tmp_path, 5 * GIB, "0::/\n")
    group(cgroups, str(GIB), 2 * GIB)

    assert available_memory_bytes(proc, cgroups) == 0


@pytest.mark.parametrize("present", [True, False])
def test_memory_is_estimated_without_the_kernels_files(tmp_path: Path, present: bool) -> None:
    """Other systems than Linux do not have them."""
    paths = () if present else (tmp_path / "none", tmp_path / "none")

    assert available_memory_bytes(*paths) > 0


def test_resident_memory_of_a_process_is_measured() -> None:
    """It is 0 if the process does not exist."""
    assert resident_bytes(os.getpid()) > 1 << 20
    assert resident_bytes(2**30) == 0
