"""The Range header: which part of a file a client wants to have (RFC 9110, section 14)."""

import re
from typing import NamedTuple

from svc_kit.errors import RangeNotSatisfiable

_RANGE = re.compile(r"bytes=\s*(\d{0,18})-(\d{0,18})\s*", re.ASCII)


class ByteRange(NamedTuple):
    """Bytes of something, both ends included."""

    first: int
    last: int

    @property
    def length(self) -> int:
        """How many they are."""
        return self.last - self.first + 1


def parse_range(header: str | None, size: int) -> ByteRange | None:
    """The one range that a header asks for; None: everything.

    Headers of another form, and those with several ranges, count as absent, as the RFC allows.
    Raises RangeNotSatisfiable for one that begins beyond the end.
    """
    match = _RANGE.fullmatch(header or "")
    if match is None or match[1] == match[2] == "":
        return None
    if not match[1]:
        first, last = max(size - int(match[2]), 0), size - 1
    else:
        first, last = int(match[1]), min(int(match[2] or size), size - 1)
        if match[2] and int(match[2]) < first:
            return None
    if first > last:
        raise RangeNotSatisfiable(field="range", size=size)
    return ByteRange(first, last)
