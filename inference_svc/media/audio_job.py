"""Decodes sounds. Runs only in a limited child process (`svc_kit.sandbox`).

WAV is read by `wav.py`, FLAC and MP3 by libsndfile.
"""

from collections.abc import Iterator
from io import BytesIO
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from inference_svc.media.mp3 import is_mp3, with_frame_count, without_id3
from inference_svc.media.resampler import num_resampled, resample
from inference_svc.media.wav import open_wav
from svc_kit.sandbox.jobs import JobRefused

_MIN_RATE: Final = 4_000
_MAX_RATE: Final = 384_000
_MIN_SAMPLES: Final = 2
"""With fewer, libmtmd aborts."""
_MAX_CHANNELS: Final = 8
_UNKNOWN_FRAMES: Final = (1 << 63) - 1
_BLOCK_FRAMES: Final = 1 << 16


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
        rate, samples = _read_compressed(without_id3(data), seconds)
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


def _read_compressed(data: bytes, max_seconds: float) -> tuple[int, npt.NDArray[np.float32]]:
    """Return the rate and the mixed samples of a FLAC or MP3 file."""
    import soundfile  # type: ignore[import-untyped]  # not needed for WAV

    is_flac = data.startswith(b"fLaC")
    if not is_flac and not is_mp3(data):
        raise JobRefused("the format is not supported; supported are WAV, FLAC and MP3")
    try:
        with soundfile.SoundFile(BytesIO(data if is_flac else with_frame_count(data))) as file:
            if file.format not in ("FLAC", "MP3") or not 1 <= file.channels <= _MAX_CHANNELS:
                raise JobRefused("the sound is damaged")
            if file.frames == _UNKNOWN_FRAMES:
                raise JobRefused("the header of the sound does not say how long it is")
            _check_length(file.frames, file.samplerate, max_seconds)
            return file.samplerate, np.concatenate(list(_blocks(file)))
    except soundfile.SoundFileError:
        raise JobRefused("the sound is damaged or truncated") from None


def _blocks(file: Any) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the mixed samples in blocks, at most `frames` of them, which libsndfile ensures."""
    yield np.zeros(0, np.float32)
    while len(block := file.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)):
        yield np.clip(block.mean(axis=1, dtype=np.float32), -1.0, 1.0)
