"""Sounds that are damaged or made to do damage are refused by a real child, which goes on."""

from functools import partial

import numpy as np

from inference_svc.media.decoder import MediaDecoder, MediaLimits
from inference_svc.media.model import DecodedAudio
from svc_kit.errors import TooLong
from svc_kit.sandbox.pool import SandboxPool
from tests.support.hostile_media import FIELD, check_refusals, refusal
from tests.support.sounds import encode, riff_chunk, sine, wav, wav_format

SOUND = wav(bytes(100))
FLAC = encode(sine(440, 16000), 16000, "FLAC")
MP3 = encode(sine(440, 16000), 16000, "MP3")
SUPPORTED = "supported are WAV, FLAC and MP3"


def floats(*values: float) -> bytes:
    return wav(np.array(values, "<f4").tobytes(), wav_format(3, bits=32))


HOSTILE = {
    "empty": (b"", "the file is empty"),
    "text": (b"hello", SUPPORTED),
    "playlist": (b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1/\n", SUPPORTED),
    "Ogg": (encode(sine(440, 16000), 16000, "OGG"), SUPPORTED),
    "AIFF": (encode(sine(440, 16000), 16000, "AIFF"), SUPPORTED),
    "AIFF behind tags": (
        b"ID3\x04\0\0\0\0\0\0" + encode(sine(440, 16000), 16000, "AIFF"),
        SUPPORTED,
    ),
    "RIFF of a picture": (b"RIFF\0\0\0\0WEBPVP8 ", SUPPORTED),
    "header only": (wav(b"")[:20], "header is too short"),
    "no samples": (wav(b""), "0 samples, which is too few"),
    "one sample": (wav(b"\x00\x40"), "1 samples, which is too few"),
    "one after resampling": (wav(bytes(8), wav_format(rate=384000)), "4 samples, which is too few"),
    "rate of 1 Hz": (wav(bytes(100), wav_format(rate=1)), "between 4000 and 384000"),
    "rate of 0 Hz": (wav(bytes(100), wav_format(rate=0)), "between 4000 and 384000"),
    "rate of 4 GHz": (wav(bytes(100), wav_format(rate=2**32 - 1)), "between 4000 and 384000"),
    "too long": (wav(bytes(4000 * 601), wav_format(rate=4000, bits=8)), "the limit is 600 s"),
    "no channel": (wav(bytes(100), wav_format(channels=0)), "0 channels; between 1 and 8"),
    "many channels": (wav(bytes(100), wav_format(channels=9)), "9 channels; between 1 and 8"),
    "mu-law": (wav(bytes(100), wav_format(7, bits=8)), "encoding 7 with 8 bits"),
    "12 bits": (wav(bytes(100), wav_format(bits=12)), "encoding 1 with 12 bits"),
    "other encoding in an extensible header": (
        wav(bytes(100), wav_format(0xFFFE, extra=bytes(24))),
        "encoding 65534",
    ),
    "contradiction": (
        wav(bytes(100), wav_format()[:-4] + b"\x07\x00\x10\x00"),
        "contradicts itself",
    ),
    "short header": (wav(bytes(100), riff_chunk(b"fmt ", bytes(8))), "header is too short"),
    "samples before the header": (wav(bytes(100), b""), "has no samples"),
    "truncated": (wav(bytes(100), size=1000), "has 100 of 1000 bytes"),
    "many chunks": (wav(bytes(100), riff_chunk(b"junk", b"") * 200_000), "has no samples"),
    "endless chunk": (wav(bytes(100), riff_chunk(b"junk", b"", size=2**32 - 1)), "has no samples"),
    "NaN": (floats(0, float("nan")), "not finite"),
    "infinite": (floats(0, float("inf")), "not finite"),
    "half a FLAC": (FLAC[: len(FLAC) // 2], "damaged or truncated"),
    "header of a FLAC": (FLAC[:60], "damaged or truncated"),
    "FLAC that says it is endless": (
        FLAC[:21] + bytes([FLAC[21] | 15, 255, 255, 255, 255]) + FLAC[26:],
        "the limit is 600 s",
    ),
    "header of an MP3": (MP3[:4], "damaged or truncated"),
    "tags only": (b"ID3\x04\0\0\x7f\x7f\x7f\x7f" + bytes(100), SUPPORTED),
    "long MP3": (encode(sine(440, 8000, 601.0), 8000, "MP3"), "the limit is 600 s"),
    "FLAC of unknown length": (
        FLAC[:21] + bytes([FLAC[21] & 0xF0, 0, 0, 0, 0]) + FLAC[26:],
        "does not say how long it is",
    ),
    "MP3 that says it is endless": (
        MP3[: MP3.index(b"Xing") + 8] + b"\x0f\xff\xff\xff" + MP3[MP3.index(b"Xing") + 12 :],
        "the limit is 600 s",
    ),
}


async def decode(decoder: MediaDecoder, data: bytes) -> DecodedAudio:
    """Decode a sound to 16,000 samples a second."""
    return await decoder.decode_audio(FIELD, data, 16000)


async def test_hostile_sounds_are_refused_with_the_reason(
    decoder: MediaDecoder, pool: SandboxPool
) -> None:
    """Each by the job itself, not by the limits of the process: the same child takes the next."""
    await check_refusals(partial(decode, decoder), HOSTILE)

    assert len((await decode(decoder, SOUND)).samples) == 200


async def test_a_file_over_the_limit_of_bytes_reaches_no_child(decoder: MediaDecoder) -> None:
    """The error names length and limit."""
    error = await refusal(decode(decoder, bytes(25_000_001)))

    assert error == TooLong(field=FIELD, length=25_000_001, limit=25_000_000, unit="bytes")


async def test_the_limit_of_seconds_is_a_setting(pool: SandboxPool) -> None:
    """It counts before resampling."""
    decoder = MediaDecoder(pool, MediaLimits(audio_s=0.5))

    error = await refusal(decode(decoder, wav(bytes(int(16000 * 0.6) * 2))))

    assert "lasts 0.6 s; the limit is 0.5 s" in error.message
