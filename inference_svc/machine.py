"""Memory and CPU cores that this process may use, within the limits of its cgroups (v1 and v2), and
features of the processor.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
GROUPS = Path("/sys/fs/cgroup")


class ControlGroup(NamedTuple):
    """The folder of a cgroup and its version, 1 or 2."""

    folder: Path
    version: int


def enclosing_groups(controller: str, proc: Path, groups: Path) -> Iterator[ControlGroup]:
    """Yield the cgroups of this process for a controller ("memory", "cpu"), innermost first. Some
    may not be visible from inside a container."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            root, version = groups, 2
        elif controller in controllers.split(","):
            root, version = groups / controller, 1
        else:
            continue
        group = root / path.lstrip("/")
        while True:
            yield ControlGroup(group, version)
            if group == root or root not in group.parents:
                break
            group = group.parent


_PARTS = ("quota", "period")


def available_cores(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Return the number of cores that this process may use, at least 1: those of its affinity mask,
    limited by the smallest CPU quota of its cgroups, rounded down."""
    quotas = (_quota(group) for group in enclosing_groups("cpu", proc, groups))
    cores = len(os.sched_getaffinity(0))
    return max(1, min((cores, *(int(quota) for quota in quotas if quota is not None))))


def _quota(group: ControlGroup) -> float | None:
    """The quota of a cgroup in cores; None if unlimited."""
    try:
        if group.version == 1:
            texts = [(group.folder / f"cpu.cfs_{name}_us").read_text() for name in _PARTS]
        else:
            texts = (group.folder / "cpu.max").read_text().split()
        quota, period = (int(text) for text in texts)
    except (OSError, ValueError):  # not there, or "max"
        return None
    return quota / period if quota > 0 and period > 0 else None


_KIB = 1024
_UNLIMITED = 1 << 60  # cgroup v1 writes a number near 2^63 for "no limit"
# By version: the files of limit and usage, and the key of reclaimable file cache in `memory.stat`.
_NAMES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def available_memory_bytes(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Return the bytes that can be allocated without swapping.

    The minimum of the kernel's MemAvailable and the remainder of each enclosing cgroup's limit,
    counting file cache as free.
    """
    return max(0, min((_machine_bytes(proc), *_group_bytes(proc, groups))))


def _machine_bytes(proc: Path) -> int:
    try:
        match = re.search(
            r"^MemAvailable:\s+(\d+) kB", (proc / "meminfo").read_text(), re.MULTILINE
        )
    except OSError:
        match = None
    if match:
        return int(match[1]) * _KIB
    # Not Linux: half of the memory is a conservative estimate.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _group_bytes(proc: Path, groups: Path) -> Iterator[int]:
    for group in enclosing_groups("memory", proc, groups):
        remaining = _remaining_bytes(group.folder, *_NAMES[group.version])
        if remaining is not None:
            yield remaining


def _remaining_bytes(group: Path, limit_name: str, usage_name: str, cache_name: str) -> int | None:
    try:
        limit = int((group / limit_name).read_text())
        usage = int((group / usage_name).read_text())
    except (OSError, ValueError):  # not there, or "max"
        return None
    if limit >= _UNLIMITED:
        return None
    try:
        statistics = (group / "memory.stat").read_text()
    except OSError:
        statistics = ""
    cache = re.search(rf"^{cache_name} (\d+)$", statistics, re.MULTILINE)
    return limit - usage + (int(cache[1]) if cache else 0)


def resident_bytes(pid: int, proc: Path = PROC) -> int:
    """Return the resident memory of a process, including mapped files such as weights; 0 if it
    cannot be read, for example because the process has ended."""
    try:
        pages = (proc / str(pid) / "statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


_CPU_FLAGS = {  # names in llama.cpp's system information, and in /proc/cpuinfo
    "SSE3": "pni",
    "SSSE3": "ssse3",
    "AVX": "avx",
    "AVX2": "avx2",
    "AVX_VNNI": "avx_vnni",
    "F16C": "f16c",
    "FMA": "fma",
    "BMI2": "bmi2",
    "AVX512": "avx512f",
    "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
    "AMX_INT8": "amx_int8",
    "NEON": "asimd",
    "DOTPROD": "asimddp",
    "MATMUL_INT8": "i8mm",
    "FP16_VA": "asimdhp",
    "SVE": "sve",
    "SME": "sme",
}


def cpu_flags(proc: Path = PROC) -> str:
    """The features of the processor as Linux names them; empty on other systems."""
    try:
        text = (proc / "cpuinfo").read_text()
    except OSError:
        return ""
    found = re.search(r"^(flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return found[2].strip() if found else ""


def missing_cpu_features(system_info: str, flags: str) -> list[str]:
    """The features that llama.cpp was compiled with and a processor with these flags lacks."""
    known = set(flags.split())
    compiled = [name for name in re.findall(r"(\w+) = 1", system_info) if name in _CPU_FLAGS]
    return [name for name in compiled if known and _CPU_FLAGS[name] not in known]
