"""The encoder: a real process with projectors of random weights."""

import asyncio
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from inference_svc.llama.projector import Projector, ProjectorSettings, Vectors
from inference_svc.media.encoded_cache import VectorFolder
from inference_svc.media.encoder import Encoder, EncoderLimits
from inference_svc.media.encoder_messages import EncoderConfig
from inference_svc.media.model import DecodedAudio, DecodedMedia, MediaChunk, VectorChunk
from inference_svc.models.projector_file import describe_projector
from svc_kit.errors import Draining, InvalidField, QueueFull
from svc_kit.lifecycle import StartupError
from tests.support.media_models import (
    AUDIO_KINDS,
    KINDS,
    WIDTH,
    MediaPair,
    picture,
    sound,
    write_projector,
    write_text_model,
)

Pairs = Callable[[str], MediaPair]


def settings(pair: MediaPair) -> ProjectorSettings:
    """One thread."""
    return ProjectorSettings(describe_projector(pair.projector), pair.model, threads=1)


@asynccontextmanager
async def started(pair: MediaPair, limits: EncoderLimits | None = None) -> AsyncIterator[Encoder]:
    """A running encoder of a pair."""
    encoder = Encoder(EncoderConfig(pair.kind, settings(pair)), limits or EncoderLimits())
    try:
        await encoder.start()
        yield encoder
    finally:
        await encoder.close()


async def encode(
    encoder: Encoder, media: DecodedMedia, path: Path | None, *, project: str, field: str
) -> tuple[MediaChunk, ...]:
    """Encode a picture or a sound."""
    return await encoder.encode(media, media.digest, path, project=project, field=field)


def read(chunks: tuple[MediaChunk, ...], width: int) -> list[Vectors]:
    """The vectors in the files of chunks."""
    return [
        np.fromfile(
            chunk.vectors.path, np.float32, chunk.num_tokens * width, offset=chunk.vectors.offset
        ).reshape(-1, width)
        for chunk in chunks
        if isinstance(chunk, VectorChunk) and chunk.vectors is not None
    ]


@pytest.mark.parametrize("kind", [*KINDS, "idefics3"])
async def test_vectors_are_those_of_the_projector(
    kind: str, media_pair: Pairs, tmp_path: Path
) -> None:
    """The files have the vectors of each chunk, at its offset."""
    pair = media_pair(kind)
    media: DecodedMedia = sound(31) if kind in AUDIO_KINDS else picture(150, 90)
    projector = Projector(settings(pair))
    split = (
        projector.split_audio(media.samples)
        if isinstance(media, DecodedAudio)
        else projector.split_image(media.width, media.height, media.rgb)
    )
    with split as parts:
        expected = [parts.encode(i) for i, chunk in enumerate(parts.chunks) if chunk.kind]
    width = projector.width
    projector.close()

    async with started(pair) as encoder:
        chunks = await encode(encoder, media, tmp_path / "vectors", project="a", field="image")

    vectors = read(chunks, width)
    assert len(vectors) == len(expected)
    assert all(map(np.array_equal, vectors, expected))


async def test_counting_writes_nothing(media_pair: Pairs) -> None:
    """A picture that is only counted has the chunks of an encoded one, without vectors."""
    async with started(media_pair("gemma3")) as encoder:
        chunks = await encode(encoder, picture(90, 90), None, project="a", field="image")

    assert [chunk.num_tokens for chunk in chunks] == [1, 16, 1]
    assert read(chunks, WIDTH) == []


async def test_digests_tell_pictures_and_limits_apart(media_pair: Pairs, tmp_path: Path) -> None:
    """Equal pictures have equal digests after a restart too; others, or other limits, do not."""
    pair = media_pair("qwen2vl_merger")
    digests = []
    for limit, seed in [(None, 0), (None, 0), (None, 1), (1000, 0)]:
        projector = ProjectorSettings(
            describe_projector(pair.projector), pair.model, threads=1, image_max_tokens=limit
        )
        encoder = Encoder(EncoderConfig("model", projector), EncoderLimits())
        await encoder.start()
        media = picture(90, 90, seed=seed)
        chunks = await encode(encoder, media, None, project="a", field="image")
        await encoder.close()
        digests += [chunk.digest for chunk in chunks if isinstance(chunk, VectorChunk)]

    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


async def test_after_a_crash_the_pictures_are_encoded(media_pair: Pairs, tmp_path: Path) -> None:
    """The process may have died of something else than the picture in it."""
    async with started(media_pair("janus_pro")) as encoder:
        os.kill(encoder.pid, signal.SIGSTOP)
        tasks = [
            asyncio.create_task(
                encode(
                    encoder,
                    picture(90, 90, seed=number),
                    tmp_path / str(number),
                    project="a",
                    field="image",
                )
            )
            for number in range(3)
        ]
        await asyncio.sleep(0)
        os.kill(encoder.pid, signal.SIGKILL)

        assert [len(read(chunks, WIDTH)) for chunks in await asyncio.gather(*tasks)] == [1, 1, 1]
        assert encoder.stats.crashes == 1


async def test_a_picture_that_ends_the_process_twice_is_refused(
    media_pair: Pairs, tmp_path: Path
) -> None:
    """Its error names the field. Later it is refused at once, and never keeps those of others from
    being encoded; here a picture takes too long."""
    async with started(media_pair("qwen2vl_merger"), EncoderLimits(timeout_s=0.5)) as encoder:
        large, small = picture(1792, 1792), picture(90, 90)
        tasks = [
            asyncio.create_task(encode(encoder, media, tmp_path / name, project="a", field=name))
            for name, media in (("large", large), ("small", small))
        ]
        with pytest.raises(InvalidField, match=r"'large'.*cannot encode"):
            await tasks[0]
        assert len(read(await tasks[1], WIDTH)) == 1
        assert not (tmp_path / "large").exists()

        with pytest.raises(InvalidField):
            await encode(encoder, large, tmp_path / "again", project="a", field="image")
        assert encoder.stats.crashes == 2


async def test_projects_take_turns(media_pair: Pairs, tmp_path: Path) -> None:
    """A project with many pictures does not delay another with one by all of them."""
    order = []
    async with started(media_pair("janus_pro")) as encoder:

        async def encode_next(project: str, number: int) -> None:
            media = picture(90, 90, seed=number)
            await encode(encoder, media, tmp_path / str(number), project=project, field="image")
            order.append(project)

        projects = ["many"] * 6 + ["one"]
        await asyncio.gather(*(encode_next(name, i) for i, name in enumerate(projects)))

    assert order.index("one") <= 2


async def test_a_full_queue_refuses(media_pair: Pairs, tmp_path: Path) -> None:
    """One picture is encoded and as many wait as are allowed."""
    async with started(media_pair("janus_pro"), EncoderLimits(queued=1)) as encoder:
        os.kill(encoder.pid, signal.SIGSTOP)
        tasks = [
            asyncio.create_task(
                encode(encoder, picture(90, 90), tmp_path / str(i), project="a", field="image")
            )
            for i in range(3)
        ]
        with pytest.raises(QueueFull):
            await tasks[2]
        os.kill(encoder.pid, signal.SIGCONT)
        assert len(await asyncio.gather(*tasks[:2])) == 2


async def test_the_file_of_a_caller_who_left_is_deleted(media_pair: Pairs, tmp_path: Path) -> None:
    """Nobody would delete it later."""
    async with started(media_pair("janus_pro")) as encoder:
        os.kill(encoder.pid, signal.SIGSTOP)
        task = asyncio.create_task(
            encode(encoder, picture(90, 90), tmp_path / "0", project="a", field="image")
        )
        await asyncio.sleep(0)
        task.cancel()
        os.kill(encoder.pid, signal.SIGCONT)
        await encode(encoder, picture(90, 90), tmp_path / "1", project="a", field="image")

        assert not (tmp_path / "0").exists()


async def test_waiting_requests_end_when_the_encoder_is_closed(
    media_pair: Pairs, tmp_path: Path
) -> None:
    """An unloaded model leaves nobody waiting."""
    async with started(media_pair("janus_pro")) as encoder:
        os.kill(encoder.pid, signal.SIGSTOP)
        tasks = [
            asyncio.create_task(
                encode(encoder, picture(90, 90), tmp_path / str(i), project="a", field="image")
            )
            for i in range(2)
        ]
        await asyncio.sleep(0)
        await encoder.close()

        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [Draining, Draining]


async def test_the_process_dies_with_its_parent(media_pair: Pairs, tmp_path: Path) -> None:
    """A frontend that is killed leaves no encoder behind, even one that is stopped."""
    pair, script = media_pair("janus_pro"), tmp_path / "frontend.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import asyncio
            from pathlib import Path
            from tests.service.inference_svc.media.test_encoder import MediaPair, started

            async def main():
                pair = MediaPair("m", Path({str(pair.model)!r}), Path({str(pair.projector)!r}))
                async with started(pair) as encoder:
                    print(encoder.pid, flush=True)
                    await asyncio.Event().wait()

            asyncio.run(main())
            """
        )
    )
    frontend = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    assert frontend.stdout is not None
    watch = os.pidfd_open(int(await frontend.stdout.readline()))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(watch, ended.set)
    signal.pidfd_send_signal(watch, signal.SIGSTOP)

    frontend.kill()
    await frontend.wait()
    await ended.wait()
    asyncio.get_running_loop().remove_reader(watch)
    os.close(watch)


async def test_a_projector_that_does_not_fit_is_refused(media_pair: Pairs, tmp_path: Path) -> None:
    """The reason of the process reaches the operator."""
    narrow = write_projector("janus_pro", tmp_path / "mmproj.gguf", width=64)

    with pytest.raises(StartupError, match="mismatch between text model"):
        async with started(MediaPair("m", media_pair("janus_pro").model, narrow)):
            pass


async def test_a_projector_whose_warm_up_dies_is_refused(media_pair: Pairs, tmp_path: Path) -> None:
    """A file whose first encode aborts the process costs the encoder process only."""
    broken = write_projector("qwen2a", tmp_path / "mmproj.gguf", audio_positions=1000)

    with pytest.raises(StartupError, match=r"ended while .* \(signal SIGABRT\)"):
        async with started(MediaPair("m", media_pair("qwen2a").model, broken)):
            pass


async def test_a_projector_that_was_replaced_is_refused(media_pair: Pairs, tmp_path: Path) -> None:
    """Its vectors would be mixed up with those of the projector that was described."""
    path = write_projector("janus_pro", tmp_path / "mmproj.gguf")
    projector = ProjectorSettings(
        describe_projector(path), media_pair("janus_pro").model, threads=1
    )
    write_projector("janus_pro", tmp_path / "new.gguf", seed=1).replace(path)
    encoder = Encoder(EncoderConfig("m", projector), EncoderLimits())

    with pytest.raises(StartupError, match="replaced"):
        await encoder.start()
    await encoder.close()


async def test_a_text_model_without_markers_is_refused(media_pair: Pairs, tmp_path: Path) -> None:
    """The warm-up finds that tokens between tiles are missing."""
    model = write_text_model("llama", tmp_path / "model.gguf")

    with pytest.raises(StartupError, match="lacks marker tokens"):
        async with started(MediaPair("m", model, media_pair("idefics3").projector)):
            pass


def test_a_folder_of_vectors_is_private_and_deleted(tmp_path: Path) -> None:
    """Folders that killed processes left are deleted with the next; those in use are not."""
    abandoned = tmp_path / "corral-media-abandoned"
    abandoned.mkdir()
    (abandoned / "lock").touch()
    (abandoned / "0.f32").touch()
    first, second = VectorFolder(tmp_path), VectorFolder(tmp_path)

    assert sorted(tmp_path.iterdir()) == sorted([first.path, second.path])
    assert first.path.stat().st_mode & 0o777 == 0o700
    first.close()
    second.close()
    assert list(tmp_path.iterdir()) == []
