"""Sounds of every encoding become the right samples at the rate of the projector."""

import numpy as np
import pytest

from inference_svc.media.decoder import MediaDecoder, MediaLimits
from inference_svc.media.resampler import num_resampled, resample
from tests.support.sandbox_jobs import InlineJobs
from tests.support.sounds import Samples, encode, riff_chunk, sine, wav, wav_format

RATE = 16000
GUID_TAIL = bytes.fromhex("000000001000800000aa00389b71")


async def decode(data: bytes, rate: int = RATE) -> Samples:
    decoder = MediaDecoder(InlineJobs(), MediaLimits())
    sound = await decoder.decode_audio("input_audio", data, rate)
    assert sound.rate == rate
    return np.frombuffer(sound.samples, np.float32)


def extensible(encoding: int, bits: int) -> bytes:
    """A WAVE_FORMAT_EXTENSIBLE header."""
    guid = encoding.to_bytes(2, "little") + GUID_TAIL
    extra = (22).to_bytes(2, "little") + bits.to_bytes(2, "little") + (4).to_bytes(4, "little")
    return wav_format(0xFFFE, bits=bits, extra=extra + guid)


@pytest.mark.parametrize(
    ("data", "samples"),
    [
        (wav(b"\x80\x00\xff\x40", wav_format(bits=8)), [0, -1, 127 / 128, -0.5]),
        (wav(b"\x00\x00\x00\x80\x00\x40"), [0, -1, 0.5]),
        (wav(b"\0\0\x80\0\0\x40\x01\0\0", wav_format(bits=24)), [-1, 0.5, 2**-23]),
        (wav(b"\0\0\0\x80\0\0\0\x40", wav_format(bits=32)), [-1, 0.5]),
        (wav(np.array([0.25, -7], "<f4").tobytes(), wav_format(3, bits=32)), [0.25, -1]),
        (wav(b"\x00\x40\x00\xc0", extensible(1, 16)), [0.5, -0.5]),
        (wav(np.array([0.25, 1], "<f4").tobytes(), extensible(3, 32)), [0.25, 1]),
        (wav(b"\x00\x40\x00\x00\x00\x40\x00\xc0", wav_format(channels=2)), [0.25, 0]),
        (wav(b"\x80\x80\xc0\x80\x80\xc0", wav_format(channels=3, bits=8)), [1 / 6, 1 / 6]),
    ],
    ids=["8", "16", "24", "32", "float", "extensible", "extensible float", "stereo", "3 channels"],
)
async def test_every_encoding_of_wav_becomes_mixed_floats(
    data: bytes, samples: list[float]
) -> None:
    """Between -1 and 1; channels are averaged, louder floats clipped."""
    assert (await decode(data)).tolist() == pytest.approx(samples)


@pytest.mark.parametrize(
    "data",
    [
        wav(b"\x00\x40\x00\xc0", riff_chunk(b"LIST", b"odd\0") + wav_format()),
        wav(b"\x00\x40\x00\xc0", riff_chunk(b"junk", b"odd") + b"\0" + wav_format()),
        wav(b"\x00\x40\x00\xc0\x00", size=5),
        wav(b"\x00\x40\x00\xc0", size=0xFFFFFFFF),
        wav(b"\x00\x40\x00\xc0", size=0x7FFFFFFF),
        wav(b"\x00\x40\x00\xc0") + riff_chunk(b"LIST", b"after"),
        b"RIFF\0\0\0\0" + wav(b"\x00\x40\x00\xc0")[8:],
    ],
    ids=[
        "tags",
        "padded",
        "half a sample",
        "streamed",
        "streamed 31 bit",
        "tags after",
        "RIFF size",
    ],
)
async def test_other_chunks_and_unknown_sizes_do_not_matter(data: bytes) -> None:
    """Programs that write to a pipe cannot know the size; half a sample at the end is ignored."""
    assert (await decode(data)).tolist() == [0.5, -0.5]


@pytest.mark.parametrize("channels", [1, 2])
async def test_flac_has_the_samples_of_wav(channels: int) -> None:
    """It is lossless."""
    tones = np.stack([sine(440, RATE), sine(1000, RATE)][:channels], axis=1)
    samples = (tones * 2**15).astype(np.int16)
    flac, plain = (encode(samples, RATE, format) for format in ("FLAC", "WAV"))

    assert np.array_equal(await decode(flac), (samples / 2**15).mean(axis=1).astype(np.float32))
    assert np.array_equal(await decode(flac), await decode(plain))


@pytest.mark.parametrize("tag", [b"", b"ID3\x04\0\0\0\0\x02\x01" + bytes(257)])
async def test_mp3_sounds_like_its_source(tag: bytes) -> None:
    """The tone is there, with and without tags before it."""
    decoded = await decode(tag + encode(sine(1000, 44100), 44100, "MP3"))
    middle = decoded[RATE // 4 : -RATE // 4]
    spectrum = np.abs(np.fft.rfft(middle))

    assert len(decoded) / RATE == pytest.approx(1.0, abs=0.1)
    assert np.argmax(spectrum) * RATE / len(middle) == pytest.approx(1000, abs=2)
    assert np.abs(middle).max() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("rate", [8000, 22050, 48000])
@pytest.mark.parametrize("channels", [1, 2])
async def test_mp3_without_a_count_of_frames_is_whole(rate: int, channels: int) -> None:
    """Also with a variable bit rate, from which libsndfile would guess a shorter duration."""
    loud = np.random.default_rng(0).uniform(-0.9, 0.9, rate * 2).astype(np.float32)
    samples = np.concatenate([loud, np.zeros(rate * 8, np.float32)])
    tagged = encode(np.stack([samples] * channels, axis=1), rate, "MP3")
    bare = tagged[tagged.index(tagged[:2], 4) :]
    trailer = b"TAG" + bytes(125)

    assert b"Xing" in tagged[:100]
    for data in (bare, bare + trailer):
        assert len(await decode(data)) / RATE == pytest.approx(10, abs=0.2)


@pytest.mark.parametrize(
    ("rate", "target"),
    [(44100, 16000), (48000, 16000), (8000, 16000), (22050, 24000), (384000, 16000)],
)
def test_resampling_keeps_what_fits_and_removes_the_rest(rate: int, target: int) -> None:
    """A tone up to 0.8 of the lower Nyquist frequency is the same tone; one above it is silent."""
    nyquist = min(rate, target) / 2
    middle = slice(target // 8, -target // 8)
    for frequency in (100.0, 0.8 * nyquist):
        resampled = resample(sine(frequency, rate), rate, target)
        assert np.abs(resampled - sine(frequency, target))[middle].max() < 1e-4
    if rate > target:
        assert np.abs(resample(sine(1.05 * nyquist, rate), rate, target))[middle].max() < 1e-4


@pytest.mark.parametrize(("rate", "length"), [(44101, 7001), (11111, 100), (4000, 2), (192000, 25)])
def test_odd_rates_and_short_sounds_keep_their_duration(rate: int, length: int) -> None:
    """Up to one sample and the rounding of the ratio; constant sounds stay constant inside."""
    resampled = resample(np.full(length, 0.5, np.float32), rate, RATE)

    assert len(resampled) == num_resampled(length, rate, RATE)
    assert len(resampled) == pytest.approx(length * RATE / rate, abs=1, rel=1e-3)
    if length > 5000:
        assert resampled[500:-500] == pytest.approx(0.5, abs=1e-5)


def test_a_sound_at_the_right_rate_is_unchanged() -> None:
    """Not even filtered."""
    samples = sine(7900, RATE)

    assert resample(samples, RATE, RATE) is samples
