"""Decodes pictures and sounds of callers in limited child processes.

`image_job.py` and `audio_job.py` run in the children.
"""

from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Final

from inference_svc.media.model import DecodedAudio, DecodedImage
from inference_svc.sandbox_jobs import DECODE_AUDIO, DECODE_IMAGE
from svc_kit.errors import InvalidField, TooLong
from svc_kit.sandbox.jobs import FailureKind, Job, JobFailed, JobRunner

LOW_DETAIL_SIDE: Final = 512
"""The longest side of a picture with `detail: low`."""
_PROBLEMS: Final = {
    FailureKind.DEADLINE: "takes too long to decode",
    FailureKind.MEMORY: "takes too much memory to decode",
    FailureKind.OUTPUT: "is too large when decoded",
    FailureKind.CRASHED: "cannot be decoded",
}


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """Limits of files of callers."""

    image_bytes: int = 20_000_000
    image_pixels: int = 40_000_000
    image_aspect: int = 200
    """How many times as long as the other a side may be."""
    audio_bytes: int = 25_000_000
    audio_s: float = 600.0


@dataclass(frozen=True, slots=True)
class ImageSize:
    """The size to which larger pictures are scaled down, keeping the ratio of their sides."""

    side: int = 4096
    pixels: int = 16_000_000


class MediaDecoder:
    """Decodes files. `field` is the request field that errors name."""

    def __init__(self, jobs: JobRunner, limits: MediaLimits) -> None:
        self._jobs = jobs
        self._limits = limits

    async def decode_image(
        self, field: str, data: bytes, size: ImageSize, *, is_low_detail: bool = False
    ) -> DecodedImage:
        """Decode a PNG, JPEG, WebP or the first frame of a GIF; scale it down to `size`, and to 512
        pixels a side with low detail.

        Raises:
            TooLong: The file has too many bytes.
            InvalidField: It is empty, damaged, of another format, or has too many pixels.
            QueueFull: Too many files wait.
        """
        check_file_bytes(field, data, self._limits.image_bytes)
        payload = {
            "data": data,
            "max_pixels": self._limits.image_pixels,
            "max_aspect": self._limits.image_aspect,
            "side": min(size.side, LOW_DETAIL_SIDE) if is_low_detail else size.side,
            "pixels": size.pixels,
        }
        match await self._run(DECODE_IMAGE, payload, field, "picture"):
            case {"width": int(width), "height": int(height), "rgb": bytes(rgb)} if (
                0 < width <= size.side
                and 0 < height <= size.side
                and len(rgb) == 3 * width * height
            ):
                return DecodedImage(width, height, rgb)
        raise _invalid_result(field, "picture")

    async def decode_audio(self, field: str, data: bytes, rate: int) -> DecodedAudio:
        """Decode a WAV, FLAC or MP3 file to one channel with `rate` samples in a second.

        Raises:
            TooLong: The file has too many bytes.
            InvalidField: It is empty, damaged, of another format, or lasts too long.
            QueueFull: Too many files wait.
        """
        check_file_bytes(field, data, self._limits.audio_bytes)
        payload = {"data": data, "rate": rate, "max_seconds": self._limits.audio_s}
        match await self._run(DECODE_AUDIO, payload, field, "sound"):
            case {"samples": bytes(samples)} if len(samples) >= 8 and len(samples) % 4 == 0:
                return DecodedAudio(samples, rate)
        raise _invalid_result(field, "sound")

    async def _run(self, job: Job, payload: dict[str, Any], field: str, noun: str) -> Any:
        try:
            # A key of its own: no file is trusted because another one could be decoded.
            return await self._jobs.run(job, payload, key=token_hex(8))
        except JobFailed as failed:
            problem = _PROBLEMS.get(failed.kind)
            text = f"the {noun} {problem}" if problem else failed.problem
            raise InvalidField(field=field, problem=text) from None


def _invalid_result(field: str, noun: str) -> InvalidField:
    """The error of a file that has taken over its child, whose results then prove nothing."""
    return InvalidField(field=field, problem=f"the {noun} {_PROBLEMS[FailureKind.CRASHED]}")


def check_file_bytes(field: str, data: bytes, limit: int) -> None:
    """Raise InvalidField for an empty file and TooLong for one of more than `limit` bytes."""
    if not data:
        raise InvalidField(field=field, problem="the file is empty")
    if len(data) > limit:
        raise TooLong(field=field, length=len(data), limit=limit, unit="bytes")
