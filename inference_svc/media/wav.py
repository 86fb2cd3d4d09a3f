"""Reads WAV files; runs only in a limited child process (`audio_job.py`)."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from svc_kit.sandbox.jobs import JobRefused

_PCM: Final = 1
_FLOAT: Final = 3
_EXTENSIBLE: Final = 0xFFFE
_GUID_TAIL: Final = bytes.fromhex("000000001000800000aa00389b71")
_DTYPES: Final[dict[tuple[int, int], str]] = {
    (_PCM, 8): "u1",
    (_PCM, 16): "<i2",
    (_PCM, 24): "u1",
    (_PCM, 32): "<i4",
    (_FLOAT, 32): "<f4",
}
_MAX_CHANNELS: Final = 8
_MAX_CHUNKS: Final = 100
_UNKNOWN_BYTES: Final = 0x7FFF0000
"""Larger sizes are those of writers to a pipe, which do not know the size when they begin."""


@dataclass(frozen=True, slots=True)
class WavFile:
    """A WAV file whose header was checked: `frames` samples a channel, `rate` in a second."""

    rate: int
    channels: int
    encoding: int
    bits: int
    body: memoryview

    @property
    def frames(self) -> int:
        """The samples of a channel."""
        return len(self.body) // (self.channels * self.bits // 8)

    def read(self) -> npt.NDArray[np.float32]:
        """Mix the channels: values between -1 and 1. Raises JobRefused for values that are not
        finite."""
        count = self.frames * self.channels
        raw = np.frombuffer(self.body[: count * self.bits // 8], _DTYPES[self.encoding, self.bits])
        if self.encoding == _FLOAT and not np.isfinite(raw).all():
            raise JobRefused("the sound has samples that are not finite numbers")
        values = _to_float(raw, self.bits)
        mixed: npt.NDArray[np.float32] = values.reshape(-1, self.channels).mean(axis=1)
        return mixed


def _to_float(raw: npt.NDArray[Any], bits: int) -> npt.NDArray[np.float32]:
    if raw.dtype.kind == "f":
        return raw.astype(np.float32).clip(-1.0, 1.0)
    if bits == 24:
        shifted = np.zeros((len(raw) // 3, 4), np.uint8)
        shifted[:, 1:] = raw.reshape(-1, 3)
        raw, bits = shifted.view("<i4").ravel(), 32
    values = raw.astype(np.float32)
    values -= 128 if bits == 8 else 0
    values /= 1 << (bits - 1)
    return values


def open_wav(data: bytes) -> WavFile:
    """Check the header of a file that starts with "RIFF" and "WAVE".

    Raises JobRefused for other encodings than PCM of 8 to 32 bits and float of 32, and for a file
    that is damaged or truncated.
    """
    layout: tuple[int, int, int, int] | None = None
    for name, size, start in _chunks(data):
        if name == b"fmt ":
            layout = _read_layout(data[start : start + min(size, 40)])
        elif name == b"data" and layout is not None:
            encoding, channels, rate, bits = layout
            return WavFile(rate, channels, encoding, bits, _body(data, start, size))
    raise JobRefused("the WAV file is damaged or truncated: it has no samples")


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield the name, size and start of each chunk."""
    start = 12
    for _ in range(_MAX_CHUNKS):
        if start + 8 > len(data):
            return
        name, size = struct.unpack_from("<4sI", data, start)
        yield name, size, start + 8
        start += 8 + size + size % 2


def _read_layout(chunk: bytes) -> tuple[int, int, int, int]:
    """Read encoding, channels, rate and bits."""
    if len(chunk) < 16:
        raise JobRefused("the WAV file is damaged: its header is too short")
    encoding, channels, rate, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", chunk)
    if encoding == _EXTENSIBLE and len(chunk) >= 40 and chunk[26:40] == _GUID_TAIL:
        encoding = int.from_bytes(chunk[24:26], "little")
    if (encoding, bits) not in _DTYPES:
        raise JobRefused(
            f"WAV files of encoding {encoding} with {bits} bits are not supported; supported are "
            "PCM (1) with 8, 16, 24 or 32 bits and float (3) with 32"
        )
    if not 1 <= channels <= _MAX_CHANNELS:
        raise JobRefused(f"the sound has {channels} channels; between 1 and {_MAX_CHANNELS} can be")
    if frame_bytes != channels * bits // 8:
        raise JobRefused("the WAV file is damaged: its header contradicts itself")
    return encoding, channels, rate, bits


def _body(data: bytes, start: int, size: int) -> memoryview:
    rest = memoryview(data)[start:]
    if size >= _UNKNOWN_BYTES:
        return rest
    if size > len(rest):
        raise JobRefused(
            f"the WAV file is truncated: it has {len(rest)} of {size} bytes of samples"
        )
    return rest[:size]
