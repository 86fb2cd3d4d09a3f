"""Pictures in files for tests: sound ones, and headers that promise more than follows."""

import base64
import struct
import zlib
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

WHITE = b"\xff\xff\xff"


def save(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *chunks: bytes, bits: int = 8, color: int = 0) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + b"".join(chunks)


def png_of_rows(width: int, rows: bytes, *, bits: int, color: int, height: int = 1) -> bytes:
    """A PNG file with unfiltered rows, each with its filter byte."""
    end = png_chunk(b"IEND", b"")
    return png(width, height, png_chunk(b"IDAT", zlib.compress(rows)), end, bits=bits, color=color)


def gif(width: int, height: int) -> bytes:
    """A GIF file of a size, with no more than a pixel."""
    pixel = b"\x02\x02\x44\x01\x00;"
    return (
        struct.pack("<6sHHBBB", b"GIF89a", width, height, 0x80, 0, 0)
        + bytes(6)
        + struct.pack("<cHHHHB", b",", 0, 0, width, height, 0)
        + pixel
    )


def jpeg_of_size(width: int, height: int) -> bytes:
    """A JPEG file whose header was changed to a size."""
    data = bytearray(save(Image.new("RGB", (8, 8), "red"), "JPEG"))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def webp_of_size(width: int, height: int) -> bytes:
    """A WebP file whose header was changed to a canvas size."""
    frames = [Image.new("RGBA", (8, 8), color) for color in ("red", "blue")]
    data = bytearray(save(frames[0], "WEBP", save_all=True, append_images=frames[1:]))
    data[24:27] = (width - 1).to_bytes(3, "little")
    data[27:30] = (height - 1).to_bytes(3, "little")
    return bytes(data)


def noise_png(seed: int, size: tuple[int, int] = (96, 64)) -> bytes:
    """A picture of noise, `size` pixels wide and high."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return save(Image.fromarray(pixels), "PNG")


def circle_png(color: str, place: tuple[int, int] = (9, 21), *, corner: bytes = WHITE) -> bytes:
    """A circle, of which the demo model can say "Which color is it?". The colour of the pixel in
    the corner makes pictures different."""
    image = Image.new("RGB", (64, 64), "white")
    left, top = place
    ImageDraw.Draw(image).ellipse((left, top, left + 22, top + 22), fill=color)
    image.putpixel((0, 0), tuple(corner))
    return save(image)


def data_url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
