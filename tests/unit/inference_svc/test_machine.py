"""Tests of the usable cores, on machines and in containers, and of the features of a processor."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from inference_svc.machine import available_cores, cpu_flags, missing_cpu_features

Machine = Callable[[str], tuple[Path, Path]]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Creates /proc, with these cgroups, and /sys/fs/cgroup of a machine with 16 cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))

    def create(groups: str) -> tuple[Path, Path]:
        proc = tmp_path / "proc"
        (proc / "self").mkdir(parents=True)
        (proc / "self" / "cgroup").write_text(groups)
        return proc, tmp_path / "cgroup"

    return create


def _write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(f"{text}\n")


def test_without_a_quota_all_cores_are_usable(machine: Machine) -> None:
    """With no cgroups, and in a cgroup without a limit."""
    proc, groups = machine("0::/job\n")
    assert available_cores(proc / "elsewhere", groups) == 16
    assert available_cores(proc, groups) == 16
    _write(groups / "job", cpu_max="max 100000")
    assert available_cores(proc, groups) == 16


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("400000 100000", 4), ("765000 100000", 7), ("50000 100000", 1), ("3200000 100000", 16)],
)
def test_a_quota_is_rounded_down_to_cores(machine: Machine, quota: str, cores: int) -> None:
    """With one thread too many, all threads would wait for it."""
    proc, groups = machine("0::/\n")
    _write(groups, cpu_max=quota)
    assert available_cores(proc, groups) == cores


def test_the_smallest_quota_of_the_enclosing_groups_applies(machine: Machine) -> None:
    """The quota of a pod applies to its containers."""
    proc, groups = machine("0::/pod/container\n")
    _write(groups / "pod", cpu_max="200000 100000")
    _write(groups / "pod" / "container", cpu_max="300000 100000")
    assert available_cores(proc, groups) == 2


def test_quotas_of_cgroup_v1_are_read(machine: Machine) -> None:
    """From two files; -1 is no quota."""
    proc, groups = machine("3:memory:/x\n2:cpu,cpuacct:/job\n")
    _write(groups / "cpu", **{"cpu_cfs_quota_us": "-1", "cpu_cfs_period_us": "100000"})
    assert available_cores(proc, groups) == 16
    _write(groups / "cpu/job", **{"cpu_cfs_quota_us": "150000", "cpu_cfs_period_us": "50000"})
    assert available_cores(proc, groups) == 3


def test_features_of_a_build_that_the_processor_lacks_are_named(tmp_path: Path) -> None:
    """Where the processor is unknown, only a trial tells."""
    info = "CPU : SSE3 = 1 | AVX = 1 | AVX512 = 1 | AVX512_BF16 = 1 | LLAMAFILE = 1 | REPACK = 1 |"
    (tmp_path / "cpuinfo").write_text("processor : 0\nflags\t\t: pni avx fma\nbugs :\n")

    assert cpu_flags(tmp_path) == "pni avx fma"
    assert missing_cpu_features(info, cpu_flags(tmp_path)) == ["AVX512", "AVX512_BF16"]
    assert missing_cpu_features(info, "pni avx avx512f avx512_bf16") == []
    assert missing_cpu_features(info, cpu_flags(tmp_path / "none")) == []
