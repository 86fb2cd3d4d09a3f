"""Memory of states."""

import ctypes
import mmap
import re
from pathlib import Path

import pytest

from inference_svc.engine.saved_state import allocate_state

SMAPS = Path("/proc/self/smaps")


def flags_of(address: int) -> list[str]:
    """The flags of the mapping with an address (proc(5))."""
    is_inside, flags = False, ""
    for line in SMAPS.read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            is_inside = int(found[1], 16) <= address < int(found[2], 16)
        elif is_inside and line.startswith("VmFlags:"):
            flags = line
    return flags.split()


@pytest.mark.skipif(
    not (SMAPS.exists() and hasattr(mmap, "MADV_NOHUGEPAGE")), reason="of Linux only"
)
def test_a_large_state_is_not_in_huge_pages() -> None:
    """The first use of one is slow where a host has to provide it."""
    state = allocate_state(16 << 20)
    middle = ctypes.addressof(ctypes.c_char.from_buffer(state)) + len(state) // 2

    assert "nh" in flags_of(middle)


@pytest.mark.parametrize("num_bytes", [0, 1, 100, 16 << 20])
def test_a_state_may_be_written_and_extended(num_bytes: int) -> None:
    """As states with pictures are."""
    state = allocate_state(num_bytes)
    memoryview(state)[:] = bytes(num_bytes)
    state.extend(b"end")

    assert state == bytes(num_bytes) + b"end"
