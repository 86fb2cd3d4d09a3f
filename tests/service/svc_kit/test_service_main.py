"""The memory of a service in a separate process."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from pathlib import Path
from svc_kit.service_main import run

MIB = 2**20

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / MIB

async def serve(settings, read):
    before = resident_mib()
    small = []
    for _ in range(2):
        large = []
        for _ in range(16):
            large.append(b"x" * (4 * MIB))
            small.append(b"x" * 5000)
        large.clear()
    print(resident_mib() - before)

run(serve, None, None)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_large_requests_leave_no_memory_in_use() -> None:
    """Also where smaller objects were made between them, which would keep the heap large."""
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )

    assert float(result.stdout) < 16
