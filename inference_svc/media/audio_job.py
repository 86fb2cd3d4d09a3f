"""Decodes sounds. Runs only in a limited child process (`svc_kit.sandbox`).

WAV is read by `wav.py`, FLAC and MP3 by libsndfile.
"""

from collections.abc import Iterator
from io import BytesIO
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from inference_svc.media.resampler import num_resampled, resample
from inference_svc.media.wav import open_wav
from svc_kit.sandbox.jobs import JobRefused

_MIN_RATE: Final = 4_000
_MAX_RATE: Final = 384_000
_MIN_SAMPLES: Final = 2
"""With fewer, libmtmd aborts."""
_MAX_CHANNELS: Final = 8
_BLOCK_FRAMES: Final = 1 << 16
_ID3_HEADER_BYTES: Final = 10


def decode(payload: dict[str, Any]) -> dict[str, Any]:
    """Decode the sound in "data": WAV, FLAC or MP3, of at most "max_seconds".

    Channels are mixed. The result has "samples": float32 at "rate" in a second.

    Raises:
        JobRefused: The format is not supported, the sound is too long, or it is damaged.
    """
    data, seconds = payload["data"], payload["max_seconds"]
    if data.startswith(b"RIFF") and data[8:12] == b"WAVE":
        file = open_wav(data)
        _check_length(file.frames, file.rate, seconds)
        rate, samples = file.rate, file.read()
    else:
        rate, samples = _read_compressed(_without_id3(data), seconds)
    if min(len(samples), num_resampled(len(samples), rate, payload["rate"])) < _MIN_SAMPLES:
        raise JobRefused(f"the sound has {len(samples)} samples, which is too few")
    return {"samples": resample(samples, rate, payload["rate"]).tobytes()}


def _check_length(frames: int, rate: int, max_seconds: float) -> None:
    if not _MIN_RATE <= rate <= _MAX_RATE:
        raise JobRefused(
            f"the sound has {rate} samples a second; between {_MIN_RATE} and {_MAX_RATE} can be"
        )
    if frames > rate * max_seconds:
        raise JobRefused(f"the sound lasts {frames / rate:.1f} s; the limit is {max_seconds:g} s")


def _without_id3(data: bytes) -> bytes:
    """Cut off the tags before an MP3 file, whose size is in four groups of seven bits."""
    if not data.startswith(b"ID3") or len(data) < _ID3_HEADER_BYTES:
        return data
    size = 0
    for byte in data[6:10]:
        size = size << 7 | byte & 0x7F
    return data[_ID3_HEADER_BYTES + size :]


def _is_mp3(data: bytes) -> bool:
    """Whether the file starts with the header of a frame of MPEG layer III."""
    return len(data) > 3 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2


def _read_compressed(data: bytes, max_seconds: float) -> tuple[int, npt.NDArray[np.float32]]:
    """Return the rate and the mixed samples of a FLAC or MP3 file."""
    import soundfile  # type: ignore[import-untyped]  # not needed for WAV

    is_flac = data.startswith(b"fLaC")
    if not is_flac and not _is_mp3(data):
        raise JobRefused("the format is not supported; supported are WAV, FLAC and MP3")
    try:
        with soundfile.SoundFile(BytesIO(data)) as file:
            if file.format not in ("FLAC", "MP3") or not 1 <= file.channels <= _MAX_CHANNELS:
                raise JobRefused("the sound is damaged")
            _check_length(file.frames, file.samplerate, max_seconds)
            samples = np.concatenate(list(_blocks(file, max_seconds)))
            if is_flac and len(samples) < file.frames:
                raise JobRefused("the sound is damaged or truncated")
            return file.samplerate, samples
    except soundfile.SoundFileError:
        raise JobRefused("the sound is damaged or truncated") from None


def _blocks(file: Any, max_seconds: float) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the mixed samples in blocks; the length in the header may be wrong."""
    frames = 0
    yield np.zeros(0, np.float32)
    while len(block := file.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)):
        frames += len(block)
        _check_length(frames, file.samplerate, max_seconds)
        yield np.clip(block.mean(axis=1, dtype=np.float32), -1.0, 1.0)
