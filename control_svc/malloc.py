"""Configures glibc to reuse large blocks.

Messages with file bytes have up to a megabyte and are copied three times; glibc would map and unmap
memory for each copy.
"""

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 2 * 1024 * 1024


def reuse_large_blocks() -> None:
    """Have blocks of up to 2 MiB come from the heap, and as much of it stay when it is free.

    Does nothing where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
