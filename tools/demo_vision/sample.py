"""Writes the sample picture of the docs: `python -m tools.demo_vision.sample`.

A scene that is held out from training, without noise, as a PNG of less than a kilobyte.
"""

import struct
import zlib

import numpy as np

from tools.demo_model.records import ROOT
from tools.demo_vision.pictures import Picture, draw_plain
from tools.demo_vision.scenes import Scene, Thing

SAMPLE = ROOT / "docs" / "understand" / "demo-vision.png"
SCENE = Scene(
    "two",
    "white",
    (Thing("heart", "blue", 0.27, 0.4, 0.2), Thing("ring", "green", 0.74, 0.62, 0.18)),
)


def png(picture: Picture) -> bytes:
    """Encode a picture of at most 256 colours as PNG with a palette."""
    height, width, _ = picture.shape
    colors, indices = np.unique(picture.reshape(-1, 3), axis=0, return_inverse=True)
    rows = np.zeros((height, width + 1), np.uint8)  # every row begins with its filter, none
    rows[:, 1:] = indices.reshape(height, width)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", header),
        (b"PLTE", colors.astype(np.uint8).tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


if __name__ == "__main__":
    SAMPLE.write_bytes(png(draw_plain(SCENE)))
