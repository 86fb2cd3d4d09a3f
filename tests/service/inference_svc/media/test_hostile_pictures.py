"""Pictures that are damaged or made to do damage are refused by a real child, which goes on."""

import struct
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from PIL import Image

from inference_svc.media.decoder import ImageSize, MediaDecoder, MediaLimits
from inference_svc.media.model import DecodedImage
from svc_kit.errors import InvalidField, TooLong
from svc_kit.sandbox.jobs import Job
from svc_kit.sandbox.pool import SandboxPool
from tests.support.hostile_media import FIELD, check_refusals, refusal
from tests.support.pictures import gif, jpeg_of_size, png, png_chunk, save, webp_of_size

SOUND = save(Image.effect_noise((64, 64), 50).convert("RGB"), "PNG")
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
HOSTILE = {
    "empty": (b"", "empty"),
    "SVG": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "PNG, JPEG, WebP and GIF"),
    "HTML": (b"<!doctype html><img src=x onerror=alert(1)>", "PNG, JPEG, WebP and GIF"),
    "BMP": (save(Image.new("RGB", (4, 4)), "BMP"), "PNG, JPEG, WebP and GIF"),
    "playlist": (b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1/\n", "PNG, JPEG, WebP and GIF"),
    "header only": (b"\x89PNG\r\n\x1a\n", "damaged"),
    "JPEG bomb": (jpeg_of_size(26000, 26000), "26000 x 26000 pixels; the limit is 40000000"),
    "GIF bomb": (gif(26000, 26000), "26000 x 26000 pixels; the limit is 40000000"),
    "PNG bomb": (
        png(26000, 26000, png_chunk(b"IDAT", b"\x78\x9c")),
        "26000 x 26000 pixels; the limit is 40000000",
    ),
    "WebP bomb": (webp_of_size(16383, 16383), "more than 40000000 pixels"),
    "PNG without pixels": (png(0, 4, png_chunk(b"IDAT", b"")), "damaged"),
    "huge side": (png(2**31 - 1, 1, png_chunk(b"IDAT", b"")), "limit is 40000000"),
    "thin": (save(Image.new("L", (1, 65535))), "1 x 65535 pixels; one side can be at most 200"),
    "wide": (save(Image.new("L", (201, 1))), "201 x 1 pixels; one side can be at most 200"),
    "many chunks": (
        png(4, 4, png_chunk(b"teSt", b"") * 400_000, png_chunk(b"IDAT", b"")),
        "too long to decode",
    ),
    "many empty parts": (png(4, 4, png_chunk(b"IDAT", b"") * 400_000), "too long to decode"),
    "many blocks": (gif(4, 4)[:19] + b"!\xfe" + b"\x01x" * 2_000_000, "too long to decode"),
    "compressed text": (
        png(4, 4, png_chunk(b"zTXt", b"a\0\0" + b"\x78\x9c" + bytes(100))),
        "damaged",
    ),
}


async def decode(decoder: MediaDecoder, data: bytes) -> DecodedImage:
    return await decoder.decode_image(FIELD, data, ImageSize())


async def test_hostile_pictures_are_refused_with_the_reason(
    decoder: MediaDecoder, pool: SandboxPool
) -> None:
    """Each by the job itself, not by the limits of the process: the same child takes the next."""
    await check_refusals(partial(decode, decoder), HOSTILE)

    assert (await decode(decoder, SOUND)).width == 64


@pytest.mark.parametrize("format", FORMATS)
async def test_truncated_pictures_are_refused(decoder: MediaDecoder, format: str) -> None:
    """Wherever they are cut; nothing is filled up in grey."""
    data = save(Image.effect_noise((64, 64), 50).convert("RGB"), format)
    for size in (20, len(data) // 4, len(data) // 2, len(data) * 9 // 10):
        assert "damaged or truncated" in (await refusal(decode(decoder, data[:size]))).message


async def test_a_progressive_jpeg_of_many_scans_is_refused(decoder: MediaDecoder) -> None:
    """A scan costs a few bytes and a pass over all pixels."""
    data = save(Image.effect_noise((1000, 1000), 90), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    bomb = data[:last] + data[last:-2] * 101 + b"\xff\xd9"

    assert "more than 100 scans" in (await refusal(decode(decoder, bomb))).message


async def test_a_file_over_the_limit_of_bytes_reaches_no_child(decoder: MediaDecoder) -> None:
    """The error names length and limit."""
    error = await refusal(decode(decoder, bytes(20_000_001)))

    assert error == TooLong(field=FIELD, length=20_000_001, limit=20_000_000, unit="bytes")


class LimitedJobs:
    """A runner that gives each job other limits."""

    def __init__(self, pool: SandboxPool, **limits: Any) -> None:
        self._pool = pool
        self._limits = limits

    async def run(self, job: Job, payload: dict[str, Any], *, key: str = "") -> Any:
        return await self._pool.run(replace(job, **self._limits), payload, key=key)


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        # Decoding takes longer on every machine, and begins before on a busy one.
        ({"deadline_s": 0.2}, "the picture takes too long to decode"),
        ({"memory_bytes": 1 << 20}, "the picture takes too much memory to decode"),
        ({"output_bytes": 1000}, "the picture is too large when decoded"),
    ],
)
async def test_a_child_at_its_limits_fails_only_its_picture(
    pool: SandboxPool, limits: dict[str, Any], problem: str
) -> None:
    """It is replaced, and the next picture is decoded."""
    large, small = (save(Image.effect_noise((side,) * 2, 50), "PNG") for side in (4000, 2000))
    error = await refusal(decode(MediaDecoder(LimitedJobs(pool, **limits), MediaLimits()), large))
    decoded = await decode(MediaDecoder(pool, MediaLimits()), small)

    assert error == InvalidField(field=FIELD, problem=problem)
    assert (decoded.width, decoded.height) == (2000, 2000)


async def test_a_crowd_of_headers_needs_little_memory(pool: SandboxPool) -> None:
    """Bombs are refused within 64 MiB, as no pixel of them is allocated."""
    decoder = MediaDecoder(LimitedJobs(pool, memory_bytes=64 << 20), MediaLimits())
    bombs = [
        jpeg_of_size(65500, 65500),
        gif(65535, 65535),
        png(65535, 65535, png_chunk(b"IDAT", b"")),
        webp_of_size(1 << 14, 1 << 14),
        b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)),
    ]
    messages = [(await refusal(decode(decoder, bomb))).message for bomb in bombs]

    assert all("pixels" in message for message in messages[:-1])
    assert "damaged" in messages[-1]
