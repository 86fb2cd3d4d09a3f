"""How the process keeps the memory of messages.

Bytes of files come in messages of up to a megabyte, each copied three times on its way from the
socket to the disk. glibc maps blocks of that size anew for each copy and gives them back after it,
and the system zeroes every page again: half as much time as hashing the bytes takes.
"""

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 2 * 1024 * 1024


def keep_large_blocks() -> None:
    """Have blocks of up to 2 MiB come from the heap, and as much of it stay when it is free.

    Does nothing where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
