"""Reads numbers and strings from a file sequentially, with bounded memory."""

import os
import struct
from typing import Any, BinaryIO

_WINDOW_BYTES = 1 << 18
_U64 = struct.Struct("<Q")


class FileEnds(Exception):
    """The file ends before the requested bytes."""


class FileWindow:
    """Reads a file forward through a buffer of limited size, whatever lengths the file claims."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.file_bytes = os.fstat(file.fileno()).st_size
        self._data = b""
        self._start = 0  # offset of the window in the file
        self._at = 0  # offset of the next byte in the window

    @property
    def position(self) -> int:
        """Offset of the next byte in the file."""
        return self._start + self._at

    @property
    def remaining(self) -> int:
        """Number of bytes until the end."""
        return self.file_bytes - self.position

    def read(self, length: int) -> bytes:
        """Return the next bytes. The caller limits `length`.

        Raises:
            FileEnds: fewer bytes remain.
        """
        self._fill(length)
        data = self._data[self._at : self._at + length]
        self._at += length
        return data

    def skip(self, length: int) -> None:
        """Skip bytes without reading them.

        Raises:
            FileEnds: fewer bytes remain.
        """
        if length > self.remaining:
            raise FileEnds
        self._at += length

    def unpack(self, layout: struct.Struct) -> Any:
        """Return the next value of a one-value layout."""
        return self.unpack_all(layout)[0]

    def unpack_all(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Return the next values of a layout."""
        self._fill(layout.size)
        values = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return values

    def skip_strings(self, count: int) -> None:
        """Skip `count` strings, each a 64-bit length and its bytes.

        A vocabulary has hundreds of thousands of strings, so the inner loop avoids method calls.
        """
        unpack_from = _U64.unpack_from
        while count:
            self._fill(_U64.size)
            data, at = self._data, self._at
            last = len(data) - _U64.size
            while count and at <= last:
                at += _U64.size + unpack_from(data, at)[0]
                count -= 1
            self._at = at
            if self.remaining < 0:
                raise FileEnds

    def _fill(self, length: int) -> None:
        if self._at + length <= len(self._data):
            return
        if length > self.remaining:
            raise FileEnds
        self._start = self.position
        self._at = 0
        self._file.seek(self._start)
        self._data = self._file.read(max(length, _WINDOW_BYTES))
        if len(self._data) < length:
            raise FileEnds  # the file was truncated meanwhile
