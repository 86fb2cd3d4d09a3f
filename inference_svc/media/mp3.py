"""Frames of MP3 files; runs only in a limited child process (`audio_job.py`).

libsndfile decodes as many frames as the tag in the first one says. Without a tag it estimates
them from the size of the first, and would cut off the rest of a file of variable bit rate.
"""

import struct
from dataclasses import dataclass
from typing import Final

_KBIT_S: Final = {
    1: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_RATES: Final = (44100, 48000, 32000)
_TAGS: Final = (b"Xing", b"Info", b"VBRI")
_VBRI_OFFSET: Final = 36
_ID3_HEADER_BYTES: Final = 10


@dataclass(frozen=True, slots=True)
class _Frame:
    size: int
    tag_offset: int


def is_mp3(data: bytes) -> bool:
    """Whether the data starts with the header of a frame of MPEG layer III."""
    return len(data) > 3 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2


def without_id3(data: bytes) -> bytes:
    """Cut off the tags before an MP3 file, whose size is in four groups of seven bits."""
    if not data.startswith(b"ID3") or len(data) < _ID3_HEADER_BYTES:
        return data
    size = 0
    for byte in data[6:10]:
        size = size << 7 | byte & 0x7F
    return data[_ID3_HEADER_BYTES + size :]


def with_frame_count(data: bytes) -> bytes:
    """Put a frame with the number of frames before a file that has none."""
    frame = _read_frame(data, 0)
    if frame is None or any(
        data.startswith(tag, offset) for tag in _TAGS for offset in (frame.tag_offset, _VBRI_OFFSET)
    ):
        return data
    count, start = 0, 0
    while (following := _read_frame(data, start)) is not None:
        count += 1
        start += following.size
    # Bit rate 12 is large enough for the tag at every rate. There is no checksum.
    header = bytes((0xFF, data[1] | 1, 0xC0 | data[2] & 0x0C, data[3]))
    first = _read_frame(header, 0)
    if first is None:
        return data
    tag = b"Info" + struct.pack(">II", 1, count)
    return (header.ljust(first.tag_offset, b"\0") + tag).ljust(first.size, b"\0") + data


def _read_frame(data: bytes, start: int) -> _Frame | None:
    """Read the header of a frame; None if there is none, or one of free bit rate."""
    header = data[start : start + 4]
    if not is_mp3(header):
        return None
    version = header[1] >> 3 & 3
    bit_rate, rate = header[2] >> 4, header[2] >> 2 & 3
    if version == 1 or bit_rate in (0, 15) or rate == 3:
        return None
    halvings = {3: 0, 2: 1, 0: 2}[version]
    is_mono = header[3] >> 6 == 3
    kbit_s = _KBIT_S[1 if halvings == 0 else 2][bit_rate]
    samples_bytes = 144_000 if halvings == 0 else 72_000
    size = samples_bytes * kbit_s // (_RATES[rate] >> halvings) + (header[2] >> 1 & 1)
    side_bytes = (17 if is_mono else 32) if halvings == 0 else (9 if is_mono else 17)
    return _Frame(size, 4 + side_bytes)
