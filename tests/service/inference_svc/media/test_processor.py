"""Files of callers as vectors: decoded in children, encoded in the encoder, kept in the cache."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from inference_svc.engine.media import MediaKind
from inference_svc.llama.projector import ProjectorSettings
from inference_svc.media.decoder import MediaDecoder, MediaLimits
from inference_svc.media.encoded_cache import VectorFolder
from inference_svc.media.encoder import Encoder, EncoderLimits
from inference_svc.media.encoder_messages import EncoderConfig
from inference_svc.media.model import VectorChunk
from inference_svc.media.processor import MediaInput, MediaLease, MediaProcessor
from inference_svc.models.projector_file import describe_projector
from svc_kit.errors import InvalidField, QueueFull
from svc_kit.sandbox.pool import SandboxPool
from tests.support import sounds
from tests.support.media_models import WIDTH, MediaPair, picture, png_file

BYTES_OF_A_PICTURE = 36 * WIDTH * 4
Start = Callable[..., AbstractAsyncContextManager[MediaProcessor]]


def image(seed: int = 0, size: int = 90, *, low: bool = False) -> MediaInput:
    data = png_file(picture(size, size, seed=seed))
    return MediaInput("image", MediaKind.IMAGE, data, is_low_detail=low)


@pytest.fixture
def start(media_pair: Callable[[str], MediaPair], pool: SandboxPool, tmp_path: Path) -> Start:
    @asynccontextmanager
    async def start(
        kind: str = "janus_pro", max_bytes: int = 1 << 20
    ) -> AsyncIterator[MediaProcessor]:
        pair = media_pair(kind)
        projector = ProjectorSettings(describe_projector(pair.projector), pair.model, threads=1)
        processor = MediaProcessor(
            Encoder(EncoderConfig(kind, projector), EncoderLimits()),
            MediaDecoder(pool, MediaLimits()),
            VectorFolder(tmp_path),
            max_bytes,
        )
        try:
            await processor.start()
            yield processor
        finally:
            await processor.close()

    return start


async def encode(processor: MediaProcessor, *inputs: MediaInput, owner: str = "a") -> MediaLease:
    return await processor.encode(inputs, owner=owner, project=owner)


def vector_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.f32"))


def digests(lease: MediaLease) -> list[bytes]:
    """The digests of all chunks of vectors."""
    chunks = [chunk for media in lease.media for chunk in media.chunks]
    return [chunk.digest for chunk in chunks if isinstance(chunk, VectorChunk)]


async def test_a_picture_that_was_seen_is_not_encoded_again(start: Start) -> None:
    """Later requests of its owner get the same vectors; others cannot notice that it was seen."""
    async with start() as processor:
        first = await encode(processor, image())
        first.release()
        again = await encode(processor, image(), image())
        assert again.media == first.media * 2
        assert processor.encoder.stats.encoded == 1

        other = await encode(processor, image(), owner="b")
        assert digests(other) == digests(first)
        assert processor.encoder.stats.encoded == 2
        assert (processor.cache.stats.hits, processor.cache.stats.misses) == (2, 2)


async def test_requests_with_one_new_picture_encode_it_once(start: Start) -> None:
    """They wait for the same work, which goes on when one of them leaves."""
    async with start() as processor:
        tasks = [asyncio.create_task(encode(processor, image())) for _ in range(3)]
        for _ in range(2):
            await asyncio.to_thread(lambda: None)
        tasks[0].cancel()
        leases = await asyncio.gather(*tasks[1:])

        assert leases[0].media == leases[1].media
        assert processor.encoder.stats.encoded == 1


async def test_equal_pixels_in_other_files_are_encoded_once(start: Start) -> None:
    """A file that differs in metadata or compression is decoded, and then found."""
    other = MediaInput("image", MediaKind.IMAGE, png_file(picture(90, 90), compress_level=0))
    async with start() as processor:
        first, second = await encode(processor, image()), await encode(processor, other)

        assert first.media == second.media
        assert processor.encoder.stats.encoded == 1


async def test_vectors_in_use_stay_and_others_make_room(start: Start, tmp_path: Path) -> None:
    """The bound of bytes holds; the least recently used picture that nobody uses is deleted."""
    async with start(max_bytes=2 * BYTES_OF_A_PICTURE) as processor:
        used = await encode(processor, image(0))
        (await encode(processor, image(1))).release()
        await encode(processor, image(2))
        paths = vector_files(tmp_path)
        assert [path.stat().st_size for path in paths] == [BYTES_OF_A_PICTURE] * 2

        with pytest.raises(QueueFull):
            await encode(processor, image(3))
        assert vector_files(tmp_path) == paths

        used.release()
        used.release()
        await encode(processor, image(4))
        assert processor.cache.size == 2 * BYTES_OF_A_PICTURE
        assert len(set(vector_files(tmp_path)) - set(paths)) == 1

    assert vector_files(tmp_path) == []


async def test_a_request_that_fails_releases_its_other_pictures(start: Start) -> None:
    """The error names the field of the file that is damaged."""
    damaged = MediaInput("messages[0].content[1].image", MediaKind.IMAGE, b"no picture")
    async with start(max_bytes=BYTES_OF_A_PICTURE) as processor:
        with pytest.raises(InvalidField, match=r"messages\[0\]\.content\[1\]\.image"):
            await encode(processor, image(0), damaged)

        assert len((await encode(processor, image(1))).media) == 1


async def test_a_request_is_checked_before_its_new_pictures_are_decoded(start: Start) -> None:
    """One whose pictures were all seen is not."""

    async def refuse() -> None:
        raise QueueFull(bound="requests", depth=1, limit=1)

    damaged = MediaInput("image", MediaKind.IMAGE, b"no picture")
    async with start() as processor:
        await encode(processor, image())
        with pytest.raises(QueueFull):
            await processor.encode([image(), damaged], owner="a", project="a", check_request=refuse)
        seen = await processor.encode([image()], owner="a", project="a", check_request=refuse)

        assert len(seen.media) == processor.cache.stats.misses == 1


async def test_tokens_are_counted_without_encoding(start: Start) -> None:
    """The number is that of an encoded picture."""
    async with start("pixtral") as processor:
        counted = await processor.count([image(size=150)], owner="a", project="a")
        assert processor.encoder.stats.encoded == 0
        lease = await encode(processor, image(size=150))

    assert [each.num_tokens for each in counted] == [each.num_tokens for each in lease.media]


async def test_low_detail_takes_fewer_tokens(start: Start) -> None:
    """The picture is scaled down before, and cached apart."""
    async with start("qwen2vl_merger") as processor:
        lease = await encode(processor, image(size=900, low=True), image(size=900))

    assert [each.num_tokens for each in lease.media] == [18 * 18 + 2, 32 * 32 + 2]


async def test_a_sound_becomes_vectors(start: Start) -> None:
    """A sound at another rate than the projector's is resampled; its vectors are kept as those of
    pictures. A model that does not hear refuses it, naming the part."""
    data = sounds.encode(sounds.sine(440, 8000), 8000, "WAV")
    part = MediaInput("messages[0].content[0].audio", MediaKind.AUDIO, data)
    async with start("qwen2a") as processor:
        for _ in range(2):
            lease = await encode(processor, part)
            assert [chunk.num_tokens for chunk in lease.media[0].chunks] == [1, 750, 1]
        assert processor.encoder.stats.encoded == 1

    async with start() as processor:
        with pytest.raises(InvalidField, match=r"\.audio.*the model takes no audio input"):
            await encode(processor, part)
