"""Sounds in files for tests: sound ones, and WAV headers that lie."""

import struct
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile  # type: ignore[import-untyped]

Samples = npt.NDArray[np.float32]


def sine(frequency: float, rate: int, seconds: float = 1.0, amplitude: float = 0.5) -> Samples:
    times = np.arange(int(rate * seconds)) / rate
    return (amplitude * np.sin(2 * np.pi * frequency * times)).astype(np.float32)


def riff_chunk(name: bytes, content: bytes, size: int | None = None) -> bytes:
    """A chunk of a WAV file, whose header may give another size than its content has."""
    return name + struct.pack("<I", len(content) if size is None else size) + content


def wav_format(
    encoding: int = 1, channels: int = 1, rate: int = 16000, bits: int = 16, extra: bytes = b""
) -> bytes:
    """The chunk of a WAV file that describes its samples."""
    frame = channels * bits // 8
    rest = struct.pack("<HHIIHH", encoding, channels, rate, rate * frame & 0xFFFFFFFF, frame, bits)
    return riff_chunk(b"fmt ", rest + extra)


def wav(content: bytes, header: bytes | None = None, *, size: int | None = None) -> bytes:
    """A WAV file of samples, after chunks that describe them."""
    chunks = (wav_format() if header is None else header) + riff_chunk(b"data", content, size)
    return riff_chunk(b"RIFF", b"WAVE" + chunks)


def encode(samples: npt.NDArray[Any], rate: int, format: str) -> bytes:
    """A file by libsndfile; samples are of shape (frames,) or (frames, channels)."""
    file: Any = BytesIO()
    soundfile.write(file, samples, rate, format=format)
    return bytes(file.getvalue())
