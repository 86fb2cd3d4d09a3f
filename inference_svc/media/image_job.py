"""Decodes pictures. Runs only in a limited child process (`svc_kit.sandbox`).

Sizes are checked in the header. Pillow's loops over chunks, blocks and scans are bounded by CPU
time in proportion to the pixels, so that a small file cannot take long.
"""

import signal
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from math import isqrt
from typing import Any, Final, NoReturn

from PIL import Image, ImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.Image import Resampling, Transpose
from PIL.JpegImagePlugin import jpeg_factory
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from inference_svc.media.image_format import UNSUPPORTED_FORMAT, image_media_type
from svc_kit.sandbox.jobs import JobRefused

_HEADER_CPU_S: Final = 0.05
_CPU_S: Final = 0.05
_CPU_S_PER_PIXEL: Final = 2e-7
"""Several times what any format takes."""
_MAX_SCANS: Final = 100
"""Of a progressive JPEG: encoders write about ten. Each is a pass over all pixels."""
_BLOCK_BYTES: Final = 16384
"""What is decoded at once: the limit of CPU time works in between."""
_REDUCING_GAP: Final = 3.0
_ORIENTATION: Final = 0x0112
_TRANSPOSITIONS: Final = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
_OPENERS: Final[Mapping[str, Callable[[BytesIO], ImageFile.ImageFile]]] = {
    "image/png": PngImageFile,
    "image/jpeg": jpeg_factory,
    "image/gif": GifImageFile,
    "image/webp": WebPImageFile,
}
# What Pillow raises for damaged files.
_DAMAGES: Final = (
    OSError,
    EOFError,
    SyntaxError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    struct.error,
    zlib.error,
)


def decode(payload: dict[str, Any]) -> dict[str, Any]:
    """Decode the picture in "data": PNG, JPEG, WebP, or the first frame of a GIF.

    "max_pixels" and "max_aspect" limit its size and its ratio of sides. It is rotated by its EXIF
    orientation, blended with white where it is transparent, and scaled down to at most "side"
    pixels a side and "pixels" in all. The result has "width", "height" and "rgb".

    Raises:
        JobRefused: The format is not supported, the picture is too large, or it is damaged.
    """
    # Pillow's own check, of sizes that are in several places of a file, fails above twice this.
    Image.MAX_IMAGE_PIXELS = payload["max_pixels"] // 2
    warnings.simplefilter("ignore")  # they are about damages that do not matter
    try:
        with _cpu_limit(_HEADER_CPU_S):
            image = _choose_opener(payload["data"])(BytesIO(payload["data"]))
            _check_size(image, payload["max_pixels"], payload["max_aspect"])
        with _cpu_limit(_CPU_S + _CPU_S_PER_PIXEL * image.width * image.height):
            picture = _read(image, payload["side"], payload["pixels"])
    except Image.DecompressionBombError:
        raise JobRefused(
            f"the picture has more than {payload['max_pixels']} pixels, which is the limit"
        ) from None
    except _DAMAGES:
        raise JobRefused("the picture is damaged or truncated") from None
    return {"width": picture.width, "height": picture.height, "rgb": picture.tobytes()}


def _choose_opener(data: bytes) -> Callable[[BytesIO], ImageFile.ImageFile]:
    media_type = image_media_type(data)
    if media_type is None:
        raise JobRefused(UNSUPPORTED_FORMAT)
    if media_type == "image/jpeg" and data.count(b"\xff\xda") > _MAX_SCANS:
        raise JobRefused(f"the picture has more than {_MAX_SCANS} scans")
    return _OPENERS[media_type]


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    """Refuse the picture once the process has used this much CPU time."""

    def refuse(*_: object) -> NoReturn:
        raise JobRefused("the picture takes too long to decode")

    previous = signal.signal(signal.SIGPROF, refuse)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def _check_size(image: Image.Image, max_pixels: int, max_aspect: int) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise JobRefused(
            f"the picture has {width} x {height} pixels; the limit is {max_pixels} in all"
        )
    if max(width, height) > max_aspect * min(width, height):
        raise JobRefused(
            f"the picture has {width} x {height} pixels; one side can be at most {max_aspect} "
            "times as long as the other"
        )


def _read(image: ImageFile.ImageFile, side: int, pixels: int) -> Image.Image:
    size = fit(*image.size, side, pixels)
    # JPEG can be decoded at a half, a quarter or an eighth of its size.
    image.draft(image.mode, (2 * size[0], 2 * size[1]))
    image.decodermaxblock = _BLOCK_BYTES
    image.load()
    orientation = _read_orientation(image)
    picture = _scale(_scalable(image), size)
    if picture.mode in ("RGBA", "LA"):
        picture = _blend(picture)
    picture = picture.convert("RGB")
    return picture.transpose(orientation) if orientation is not None else picture


def fit(width: int, height: int, side: int, pixels: int) -> tuple[int, int]:
    """The size of a picture that is scaled down to at most `side` a side and `pixels` in all."""
    long = max(width, height)
    target = min(long, side, isqrt(pixels * long // min(width, height)))
    return max(1, width * target // long), max(1, height * target // long)


def _read_orientation(image: Image.Image) -> Transpose | None:
    try:
        return _TRANSPOSITIONS.get(image.getexif().get(_ORIENTATION, 1))
    except _DAMAGES:
        return None  # as in browsers, which ignore damaged EXIF data


def _scalable(image: Image.Image) -> Image.Image:
    """Convert a picture to a mode in which values can be averaged, of 8 bits."""
    if image.mode.startswith("I"):
        return image.convert("I").point([value >> 8 for value in range(1 << 16)], "L")
    if image.has_transparency_data:
        return image if image.mode in ("RGBA", "LA") else image.convert("RGBA")
    return image if image.mode in ("L", "RGB", "CMYK") else image.convert("RGB")


def _scale(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    if image.size == size:
        return image
    return image.resize(size, Resampling.LANCZOS, reducing_gap=_REDUCING_GAP)


def _blend(image: Image.Image) -> Image.Image:
    white = Image.new("RGB", image.size, "white")
    white.paste(image.convert("RGB"), mask=image.getchannel("A"))
    return white
