"""Mutated pictures, sounds and documents: each is read or refused, whatever its child does."""

import random
import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import pytest
from PIL import Image

from inference_svc.media.decoder import ImageSize, MediaDecoder, MediaLimits
from inference_svc.media.document import DocumentReader
from inference_svc.sandbox_jobs import PRELOADED
from svc_kit.errors import InvalidField, TooLong
from svc_kit.sandbox.pool import SandboxPool, SandboxSettings
from tests.support.documents import docx, pdf
from tests.support.examples import examples, timeout
from tests.support.pictures import save
from tests.support.sounds import encode, sine, wav, wav_format

_NOISE: Final = Image.effect_noise((48, 40), 60)
_FRAMES: Final = [Image.new("RGBA", (16, 16), color) for color in ("red", "#00f8", "lime")]
PICTURES: Final = [
    *(save(_NOISE.convert(mode)) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")),
    save(_FRAMES[0], save_all=True, append_images=_FRAMES[1:]),
    *(save(_NOISE.convert(mode), "JPEG") for mode in ("L", "RGB", "CMYK")),
    save(_NOISE.convert("RGB"), "JPEG", progressive=True),
    *(save(_NOISE.convert("RGBA"), "WEBP", lossless=lossless) for lossless in (False, True)),
    save(_FRAMES[0], "WEBP", save_all=True, append_images=_FRAMES[1:]),
    save(_NOISE.convert("P"), "GIF"),
    save(_FRAMES[0], "GIF", save_all=True, append_images=_FRAMES[1:]),
]
SOUNDS: Final = [
    wav(np.zeros(200, np.int16).tobytes()),
    wav(bytes(300), wav_format(channels=2, bits=24, rate=44100)),
    wav(sine(440, 8000, 0.05).tobytes(), wav_format(3, bits=32, rate=8000)),
    encode(sine(440, 16000, 0.2), 16000, "FLAC"),
    encode(sine(440, 22050, 0.2), 22050, "MP3"),
]
DOCUMENTS: Final = [
    pdf("A line", "Another line"),
    pdf("A scan", media_box="0 0 200 100"),
    docx("Pay the invoice.", "12"),
    b"<p>Hello <b>you</b></p>" * 20,
]
_EXTREMES: Final = (b"\0", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff")


def mutate(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """Change a few bytes, cut, repeat or insert a part, mostly near the beginning."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 3)):
        end = len(changed) if draw.random() < 0.5 else min(len(changed), 64)
        start, stop = sorted(draw.choices(range(end + 1), k=2))
        match draw.randrange(6):
            case 0:
                changed[start : start + 1] = bytes([draw.randrange(256)])
            case 1:
                extreme = draw.choice(_EXTREMES)
                changed[start : start + len(extreme)] = extreme
            case 2:
                del changed[start:stop]
            case 3:
                changed[stop:stop] = changed[start:stop] * draw.randint(1, 8)
            case 4:
                del changed[max(8, draw.randrange(len(changed) + 1)) :]
            case 5:
                other = draw.choice(others)
                changed[start:stop] = other[start:stop]
    if draw.random() < 0.8:  # or else most are refused by their first bytes
        changed[:12] = data[:12]
    return with_checksums(changed) if draw.random() < 0.8 else bytes(changed)


def with_checksums(data: bytearray) -> bytes:
    """Correct the checksums of the chunks of a PNG file, so that their contents are decoded."""
    start = 8
    while data.startswith(b"\x89PNG") and start + 12 <= len(data):
        end = start + 8 + int.from_bytes(data[start : start + 4])
        if end + 4 > len(data):
            break
        data[end : end + 4] = zlib.crc32(data[start + 4 : end]).to_bytes(4)
        start = end + 4
    return bytes(data)


def open_pool() -> SandboxPool:
    """Children like those of the service."""
    return SandboxPool(SandboxSettings(min_children=1, max_children=3, preload=PRELOADED))


async def decode(decoder: MediaDecoder, data: bytes, *, is_picture: bool) -> str | None:
    try:
        if is_picture:
            picture = await decoder.decode_image("image_url", data, ImageSize(side=64))
            assert max(picture.width, picture.height) <= 64
            assert len(picture.rgb) == picture.width * picture.height * 3
        else:
            sound = await decoder.decode_audio("input_audio", data, 16000)
            samples = np.frombuffer(sound.samples, np.float32)
            assert len(samples) >= 2
            assert np.abs(samples).max() <= 1
    except InvalidField as error:
        return error.field
    return None


@timeout(120)
@pytest.mark.parametrize("field", ["image_url", "input_audio"])
async def test_mutated_files_are_decoded_or_refused(field: str) -> None:
    """No other error is raised, results fit into their limits, and whole files still decode."""
    draw = random.Random(random.getrandbits(64))
    async with open_pool() as pool:
        decoder = MediaDecoder(pool, MediaLimits())
        is_picture = field == "image_url"
        files = PICTURES if is_picture else SOUNDS
        outcomes = [
            await decode(decoder, mutate(draw.choice(files), files, draw), is_picture=is_picture)
            for _ in range(examples(250))
        ]
        whole = [await decode(decoder, data, is_picture=is_picture) for data in files]

    assert set(outcomes) == {None, field}
    assert set(whole) == {None}


@timeout(120)
async def test_mutated_documents_are_read_or_refused() -> None:
    """With pictures of pages, which are files that the decoder takes."""
    draw = random.Random(random.getrandbits(64))
    outcomes: set[str | None] = set()
    async with open_pool() as pool:
        reader = DocumentReader(pool, document_bytes=1_000_000, text_bytes=1_000_000)
        decoder = MediaDecoder(pool, MediaLimits())
        for _ in range(examples(60)):
            data = mutate(draw.choice(DOCUMENTS), DOCUMENTS, draw)
            try:
                content = await reader.read("file", data, "a.html", with_pages=True)
            except (InvalidField, TooLong) as error:
                outcomes.add(error.field)
                continue
            outcomes.add(None)
            for page in content.pages:
                assert await decode(decoder, page, is_picture=True) is None

    assert outcomes == {None, "file"}
