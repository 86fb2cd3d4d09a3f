"""Files of callers as vectors: decoded in children, encoded in the encoder, kept in the cache."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from inference_svc.engine.media import MediaKind
from inference_svc.llama.projector import ProjectorSettings
from inference_svc.media.decoder import MediaDecoder, MediaLimits
from inference_svc.media.encoded_cache import VectorFolder
from inference_svc.media.encoder import Encoder, EncoderLimits
from inference_svc.media.encoder_messages import EncoderConfig
from inference_svc.media.model import EncodedMedia, VectorChunk
from inference_svc.media.processor import MediaInput, MediaProcessor
from inference_svc.models.projector_file import describe_projector
from svc_kit.errors import InvalidField, QueueFull
from svc_kit.sandbox.pool import SandboxPool
from tests.support.media_models import WIDTH, MediaPair, picture, png_file
from tests.support.sounds import encode, sine

Pairs = Callable[[str], MediaPair]
BYTES_OF_A_PICTURE = 36 * WIDTH * 4


def image(seed: int = 0, size: int = 90, *, field: str = "image") -> MediaInput:
    """A PNG file of a caller."""
    return MediaInput(field, MediaKind.IMAGE, png_file(picture(size, size, seed=seed)))


@asynccontextmanager
async def started(
    pair: MediaPair, pool: SandboxPool, folder: Path, max_bytes: int = 1 << 20
) -> AsyncIterator[MediaProcessor]:
    """A processor with the projector of a pair."""
    projector = ProjectorSettings(describe_projector(pair.projector), pair.model, threads=1)
    processor = MediaProcessor(
        Encoder(EncoderConfig(pair.kind, projector), EncoderLimits()),
        MediaDecoder(pool, MediaLimits()),
        VectorFolder(folder),
        max_bytes,
    )
    try:
        await processor.start()
        yield processor
    finally:
        await processor.close()


def vector_files(folder: Path) -> list[Path]:
    """The files of vectors in the folder of a processor."""
    return sorted(folder.glob("*/*.f32"))


def digests(media: tuple[EncodedMedia, ...]) -> list[bytes]:
    """The digests of all chunks of vectors."""
    return [
        chunk.digest for each in media for chunk in each.chunks if isinstance(chunk, VectorChunk)
    ]


async def test_a_picture_that_was_seen_is_not_encoded_again(
    media_pair: Pairs, pool: SandboxPool, tmp_path: Path
) -> None:
    """Later requests of its owner get the same vectors; others cannot notice that it was seen."""
    async with started(media_pair("janus_pro"), pool, tmp_path) as processor:
        with await processor.encode([image()], owner="a", project="a") as first:
            pass
        with await processor.encode([image(), image()], owner="a", project="a") as again:
            assert again.media == first.media * 2
        assert processor.encoder.stats.encoded == 1

        with await processor.encode([image()], owner="b", project="b") as other:
            assert digests(other.media) == digests(first.media)
        assert processor.encoder.stats.encoded == 2
        assert (processor.cache.stats.hits, processor.cache.stats.misses) == (2, 2)


async def test_requests_with_one_new_picture_encode_it_once(
    media_pair: Pairs, pool: SandboxPool, tmp_path: Path
) -> None:
    """They wait for the same work, which goes on when one of them leaves."""
    async with started(media_pair("janus_pro"), pool, tmp_path) as processor:
        tasks = [
            asyncio.create_task(processor.encode([image()], owner="a", project="a"))
            for _ in range(3)
        ]
        for _ in range(2):
            await asyncio.to_thread(lambda: None)
        tasks[0].cancel()
        leases = await asyncio.gather(*tasks[1:])

        assert leases[0].media == leases[1].media
        assert processor.encoder.stats.encoded == 1


async def test_equal_pixels_in_other_files_are_encoded_once(
    media_pair: Pairs, pool: SandboxPool, tmp_path: Path
) -> None:
    """A file that differs in metadata or compression is decoded, and then found."""
    png = png_file(picture(90, 90))
    other = MediaInput("image", MediaKind.IMAGE, png_file(picture(90, 90), compress_level=0))
    assert other.data != png

    async with started(media_pair("janus_pro"), pool, tmp_path) as processor:
        first = await processor.encode([image()], owner="a", project="a")
        second = await processor.encode([other], owner="a", project="a")

        assert first.media == second.media
        assert processor.encoder.stats.encoded == 1


async def test_vectors_in_use_stay_and_others_make_room(
    media_pair: Pairs, pool: SandboxPool, tmp_path: Path
) -> None:
    """The bound of bytes holds; the least recently used picture that nobody uses is deleted."""
    pair, bound = media_pair("janus_pro"), 2 * BYTES_OF_A_PICTURE
    async with started(pair, pool, tmp_path, bound) as processor:
        used = await processor.encode([image(0)], owner="a", project="a")
        (await processor.encode([image(1)], owner="a", project="a")).release()
        second = await processor.encode([image(2)], owner="a", project="a")
        paths = vector_files(tmp_path)
        assert [path.stat().st_size for path in paths] == [BYTES_OF_A_PICTURE] * 2

        with pytest.raises(QueueFull):
            await processor.encode([image(3)], owner="a", project="a")
        assert vector_files(tmp_path) == paths

        used.release()
        used.release()
        await processor.encode([image(4)], owner="a", project="a")
        assert processor.cache.size == bound
        assert len(set(vector_files(tmp_path)) - set(paths)) == 1
        second.release()

    assert vector_files(tmp_path) == []


async def test_a_request_that_fails_releases_its_other_pictures(
    media_pair: Pairs, pool: SandboxPool, tmp_path: Path
) -> None:
    """The error names the field of the file that is damaged."""
    damaged = MediaInput("messages[0].content[1].image", MediaKind.IMAGE, b"no picture")
    pair, bound = media_pair("janus_pro"), BYTES_OF_A_PICTURE
    async with started(pair, pool, tmp_path, bound) as processor:
        with pytest.raises(InvalidField, match=r"messages\[0\]\.content\[1\]\.image"):
            await processor.encode([image(0), damaged], owner="a", project="a")

        lease = await processor.encode([image(1)], owner="a", project="a")
        assert len(lease.media) == 1


async def test_tokens_are_counted_without_encoding(
    media_pair: Pairs, pool: SandboxPool, tmp_path: Path
) -> None:
    """The number is that of an encoded picture."""
    async with started(media_pair("pixtral"), pool, tmp_path) as processor:
        counted = await processor.count([image(size=150)], owner="a", project="a")
        assert processor.encoder.stats.encoded == 0
        lease = await processor.encode([image(size=150)], owner="a", project="a")

    assert [each.num_tokens for each in counted] == [each.num_tokens for each in lease.media]


async def test_low_detail_takes_fewer_tokens(
    media_pair: Pairs, pool: SandboxPool, tmp_path: Path
) -> None:
    """The picture is scaled down before, and cached apart."""
    data = image(size=900).data
    inputs = [
        MediaInput("image", MediaKind.IMAGE, data, is_low_detail=low) for low in (True, False)
    ]
    async with started(media_pair("qwen2vl_merger"), pool, tmp_path) as processor:
        low, full = (await processor.encode(inputs, owner="a", project="a")).media

    assert (low.num_tokens, full.num_tokens) == (18 * 18 + 2, 32 * 32 + 2)


async def test_a_model_that_does_not_hear_refuses_sound(
    media_pair: Pairs, pool: SandboxPool, tmp_path: Path
) -> None:
    """The error names the part."""
    part = MediaInput("messages[0].content[0].audio", MediaKind.AUDIO, b"RIFF")
    async with started(media_pair("janus_pro"), pool, tmp_path) as processor:
        with pytest.raises(InvalidField, match="the model takes no audio input"):
            await processor.encode([part], owner="a", project="a")


async def test_a_sound_becomes_vectors(
    media_pair: Pairs, pool: SandboxPool, tmp_path: Path
) -> None:
    """A sound at another rate than the projector's is resampled; its vectors are kept as those of
    pictures."""
    part = MediaInput("audio", MediaKind.AUDIO, encode(sine(440, 8000), 8000, "WAV"))
    async with started(media_pair("qwen2a"), pool, tmp_path) as processor:
        for _ in range(2):
            with await processor.encode([part], owner="a", project="a") as lease:
                assert [chunk.num_tokens for chunk in lease.media[0].chunks] == [1, 750, 1]
        assert processor.encoder.stats.encoded == 1
        counted = await processor.count([part], owner="a", project="a")

    assert counted[0].num_tokens == 752
