"""The encoder: a real process with projectors of random weights."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import numpy as np
import pytest

from inference_svc.engine.media import Vectors
from inference_svc.llama.projector import Projector, ProjectorSettings
from inference_svc.media.encoded_cache import VectorFolder
from inference_svc.media.encoder import Encoder, EncoderLimits
from inference_svc.media.encoder_messages import EncoderConfig
from inference_svc.media.model import DecodedAudio, DecodedMedia, MediaChunk, VectorChunk
from inference_svc.models.projector_file import describe_projector
from svc_kit.errors import DeadlineExpired, Draining, InvalidField, QueueFull
from svc_kit.lifecycle import StartupError
from tests.support.media_models import (
    AUDIO_KINDS,
    WIDTH,
    MediaPair,
    picture,
    sound,
    write_projector,
    write_text_model,
)

Pairs = Callable[[str], MediaPair]
Chunks = tuple[MediaChunk, ...]
FRONTEND = """
import asyncio
from pathlib import Path
from tests.service.inference_svc.media.test_encoder import MediaPair, started

async def main():
    async with started(MediaPair("m", Path({model!r}), Path({projector!r}))) as encoder:
        print(encoder.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def settings(pair: MediaPair, image_max_tokens: int | None = None) -> ProjectorSettings:
    """One thread."""
    file = describe_projector(pair.projector)
    return ProjectorSettings(file, pair.model, 1, image_max_tokens=image_max_tokens)


@asynccontextmanager
async def started(
    pair: MediaPair,
    limits: EncoderLimits | None = None,
    max_tokens: int | None = None,
    *,
    competes_for_cores: bool = True,
) -> AsyncIterator[Encoder]:
    config = EncoderConfig("m", settings(pair, max_tokens), competes_for_cores=competes_for_cores)
    encoder = Encoder(config, limits or EncoderLimits())
    try:
        await encoder.start()
        yield encoder
    finally:
        await encoder.close()


@contextmanager
def stopped(encoder: Encoder) -> Iterator[None]:
    """The process does nothing until the block ends."""
    pid = encoder.pid
    os.kill(pid, signal.SIGSTOP)
    yield
    os.kill(pid, signal.SIGCONT)


async def encode(
    encoder: Encoder, media: DecodedMedia, path: Path | None, project: str = "a"
) -> Chunks:
    """Encode a picture or a sound; the field is named after the file."""
    field = path.name if path is not None else "image"
    return await encoder.encode(media, media.digest, path, project=project, field=field)


def tasks(encoder: Encoder, folder: Path, *projects: str) -> list[asyncio.Task[Chunks]]:
    numbered = [(picture(90, 90, seed=i), folder / str(i), p) for i, p in enumerate(projects)]
    return [asyncio.create_task(encode(encoder, *each)) for each in numbered]


def read(chunks: Chunks, width: int = WIDTH) -> list[Vectors]:
    files = [
        (chunk.vectors, chunk.num_tokens * width)
        for chunk in chunks
        if isinstance(chunk, VectorChunk) and chunk.vectors is not None
    ]
    return [
        np.fromfile(file.path, np.float32, size, offset=file.offset).reshape(-1, width)
        for file, size in files
    ]


@pytest.mark.parametrize("kind", ["qwen3vl_merger", "qwen2a", "idefics3"])
async def test_vectors_are_those_of_the_projector(
    kind: str, media_pair: Pairs, tmp_path: Path
) -> None:
    """The files have the vectors of each chunk, at its offset."""
    media: DecodedMedia = sound(31) if kind in AUDIO_KINDS else picture(150, 90)
    projector = Projector(settings(media_pair(kind)))
    with (
        projector.split_audio(media.samples)
        if isinstance(media, DecodedAudio)
        else projector.split_image(media.width, media.height, media.rgb)
    ) as parts:
        expected = [parts.encode(i) for i, chunk in enumerate(parts.chunks) if chunk.kind]
    projector.close()

    async with started(media_pair(kind)) as encoder:
        vectors = read(await encode(encoder, media, tmp_path / "0"), projector.width)

    assert len(vectors) == len(expected)
    assert all(map(np.array_equal, vectors, expected))


async def test_counting_writes_nothing(media_pair: Pairs) -> None:
    """A picture that is only counted has the chunks of an encoded one, without vectors."""
    async with started(media_pair("gemma3")) as encoder:
        chunks = await encode(encoder, picture(90, 90), None)

    assert [chunk.num_tokens for chunk in chunks] == [1, 16, 1]
    assert read(chunks) == []


async def test_digests_tell_pictures_and_limits_apart(media_pair: Pairs) -> None:
    """Equal pictures have equal digests after a restart too; others, or other limits, do not."""
    digests = []
    for limit, seed in [(None, 0), (None, 0), (None, 1), (1000, 0)]:
        async with started(media_pair("qwen2vl_merger"), max_tokens=limit) as encoder:
            chunks = await encode(encoder, picture(90, 90, seed=seed), None)
        digests += [chunk.digest for chunk in chunks if isinstance(chunk, VectorChunk)]

    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


async def test_after_a_crash_the_pictures_are_encoded(media_pair: Pairs, tmp_path: Path) -> None:
    """The process may have died of something else than the picture in it."""
    async with started(media_pair("janus_pro")) as encoder:
        os.kill(encoder.pid, signal.SIGSTOP)
        waiting = tasks(encoder, tmp_path, "a", "a", "a")
        await asyncio.sleep(0)
        os.kill(encoder.pid, signal.SIGKILL)

        assert [len(read(chunks)) for chunks in await asyncio.gather(*waiting)] == [1, 1, 1]
        assert encoder.stats.crashes == 1


async def test_a_picture_that_was_encoded_is_not_blamed_for_earlier_crashes(
    media_pair: Pairs, tmp_path: Path
) -> None:
    """Of a process that is killed again and again."""
    async with started(media_pair("janus_pro")) as encoder:
        for attempt in range(3):
            os.kill(encoder.pid, signal.SIGSTOP)
            folder = tmp_path / str(attempt)
            folder.mkdir()
            (waiting,) = tasks(encoder, folder, "a")
            await asyncio.sleep(0)
            os.kill(encoder.pid, signal.SIGKILL)
            assert len(read(await waiting)) == 1

        assert encoder.stats.crashes == 3


async def test_a_picture_that_ends_the_process_twice_is_refused(
    media_pair: Pairs, tmp_path: Path
) -> None:
    """Its error names the field. Later it is refused at once, and never keeps those of others from
    being encoded; here a picture takes too long."""
    async with started(media_pair("qwen2vl_merger"), EncoderLimits(timeout_s=0.5)) as encoder:
        large = picture(1792, 1792)
        failing = asyncio.create_task(encode(encoder, large, tmp_path / "large"))
        small = asyncio.create_task(encode(encoder, picture(90, 90), tmp_path / "small"))
        with pytest.raises(InvalidField, match=r"'large'.*cannot encode"):
            await failing
        assert len(read(await small)) == 1
        assert not (tmp_path / "large").exists()

        with pytest.raises(InvalidField):
            await encode(encoder, large, tmp_path / "again")
        assert encoder.stats.crashes == 2


async def test_a_picture_that_takes_too_long_beside_an_engine_may_be_sent_again(
    media_pair: Pairs, tmp_path: Path
) -> None:
    """Streams may have left the encoder little time. Others are encoded. It does not count as a
    crash, of which the second would refuse it."""
    async with started(media_pair("janus_pro"), EncoderLimits(timeout_s=0.5)) as encoder:
        encoder.engine = engine = Engine()
        engine.step_ended.set()
        for attempt in range(3):
            os.kill(encoder.pid, signal.SIGSTOP)
            slow = asyncio.create_task(encode(encoder, picture(90, 90), tmp_path / "slow"))
            name = f"other-{attempt}"
            other = asyncio.create_task(encode(encoder, picture(80, 80), tmp_path / name))
            with pytest.raises(DeadlineExpired, match=r"phase: encode"):
                await slow
            assert len(read(await other)) == 1
            assert not (tmp_path / "slow").exists()


async def test_projects_take_turns(media_pair: Pairs, tmp_path: Path) -> None:
    """A project with many pictures does not delay another with one by all of them."""
    order: list[asyncio.Task[Chunks]] = []
    async with started(media_pair("janus_pro")) as encoder:
        waiting = tasks(encoder, tmp_path, *["many"] * 6, "one")
        for task in waiting:
            task.add_done_callback(order.append)
        await asyncio.gather(*waiting)

    assert order.index(waiting[6]) <= 2


async def test_a_full_queue_refuses(media_pair: Pairs, tmp_path: Path) -> None:
    """One picture is encoded and as many wait as are allowed."""
    async with started(media_pair("janus_pro"), EncoderLimits(queued=1)) as encoder:
        with stopped(encoder):
            waiting = tasks(encoder, tmp_path, "a", "a", "a")
            with pytest.raises(QueueFull):
                await waiting[2]
        assert len(await asyncio.gather(*waiting[:2])) == 2


class Engine:
    """An engine in the middle of a step: it shares its cores once `step_ended` is set."""

    def __init__(self) -> None:
        self.step_ended = asyncio.Event()
        self.reclaimed = asyncio.Event()
        self.calls: list[str] = []
        self.encoder_pid: int | None = None

    async def share_cores(self, encoder_pid: int) -> None:
        self.calls.append("share")
        self.encoder_pid = encoder_pid
        await self.step_ended.wait()

    def reclaim_cores(self) -> None:
        self.calls.append("reclaim")
        self.reclaimed.set()


async def test_nothing_is_encoded_before_the_engine_shares_its_cores(
    media_pair: Pairs, tmp_path: Path
) -> None:
    """A step in which encoding starts would take several times as long."""
    async with started(media_pair("janus_pro")) as encoder:
        encoder.engine = engine = Engine()
        waiting = tasks(encoder, tmp_path, "a", "a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (engine.calls, encoder.num_waiting) == (["share"], 2)
        engine.step_ended.set()
        await asyncio.gather(*waiting)

    assert engine.calls == ["share", "reclaim"] * 2


@pytest.mark.parametrize("competes_for_cores", [True, False])
async def test_an_engine_stops_only_an_encoder_that_competes_for_its_cores(
    media_pair: Pairs, tmp_path: Path, *, competes_for_cores: bool
) -> None:
    """Not one with cores or a GPU of its own."""
    pair = media_pair("janus_pro")
    async with started(pair, competes_for_cores=competes_for_cores) as encoder:
        encoder.engine = engine = Engine()
        engine.step_ended.set()
        await asyncio.gather(*tasks(encoder, tmp_path, "a"))
        assert engine.encoder_pid == (encoder.pid if competes_for_cores else None)

    assert engine.calls == (["share", "reclaim"] if competes_for_cores else [])


async def test_a_stopped_encoder_can_be_resumed(media_pair: Pairs, tmp_path: Path) -> None:
    """As after the end of an engine that had stopped it. Without a process it has no effect."""
    async with started(media_pair("janus_pro")) as encoder:
        os.kill(encoder.pid, signal.SIGSTOP)
        encoding = tasks(encoder, tmp_path, "a")
        encoder.resume()
        await asyncio.gather(*encoding)
    encoder.resume()


async def test_the_engine_gets_its_cores_back_if_the_caller_left(
    media_pair: Pairs, tmp_path: Path
) -> None:
    """Before anything was sent to the process."""
    async with started(media_pair("janus_pro")) as encoder:
        encoder.engine = engine = Engine()
        (left,) = tasks(encoder, tmp_path, "a")
        await asyncio.sleep(0)
        left.cancel()
        engine.step_ended.set()
        await engine.reclaimed.wait()

    assert engine.calls == ["share", "reclaim"]


async def test_the_engine_gets_its_cores_back_if_the_process_dies(
    media_pair: Pairs, tmp_path: Path
) -> None:
    """It is asked again once the process has started again."""
    async with started(media_pair("janus_pro")) as encoder:
        encoder.engine = engine = Engine()
        engine.step_ended.set()
        with stopped(encoder):
            (encoding,) = tasks(encoder, tmp_path, "a")
            await asyncio.sleep(0)
            os.kill(encoder.pid, signal.SIGKILL)
        await encoding

    assert engine.calls == ["share", "reclaim"] * 2


async def test_the_file_of_a_caller_who_left_is_deleted(media_pair: Pairs, tmp_path: Path) -> None:
    """Nobody would delete it later."""
    async with started(media_pair("janus_pro")) as encoder:
        with stopped(encoder):
            (left,) = tasks(encoder, tmp_path, "a")
            await asyncio.sleep(0)
            left.cancel()
        await encode(encoder, picture(90, 90), tmp_path / "1")

    assert not (tmp_path / "0").exists()


async def test_waiting_requests_end_when_the_encoder_is_closed(
    media_pair: Pairs, tmp_path: Path
) -> None:
    """An unloaded model leaves nobody waiting."""
    async with started(media_pair("janus_pro")) as encoder:
        os.kill(encoder.pid, signal.SIGSTOP)
        waiting = tasks(encoder, tmp_path, "a", "a")
        await asyncio.sleep(0)
        await encoder.close()

        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [Draining, Draining]


async def test_the_process_dies_with_its_parent(media_pair: Pairs, tmp_path: Path) -> None:
    """A frontend that is killed leaves no encoder behind, even one that is stopped."""
    pair, script = media_pair("janus_pro"), tmp_path / "frontend.py"
    script.write_text(FRONTEND.format(model=str(pair.model), projector=str(pair.projector)))
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    frontend = await asyncio.create_subprocess_exec(
        sys.executable, str(script), stdout=asyncio.subprocess.PIPE, env=environment
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


async def test_a_projector_that_cannot_be_used_is_refused(
    media_pair: Pairs, tmp_path: Path
) -> None:
    """The reason reaches the operator: other widths, an abort of the first encode, and missing
    tokens between tiles, which the warm-up finds."""
    janus, audio, tiles = map(media_pair, ("janus_pro", "qwen2a", "idefics3"))
    narrow = write_projector("janus_pro", tmp_path / "narrow.gguf", width=64)
    broken = write_projector("qwen2a", tmp_path / "broken.gguf", audio_positions=1000)
    model = write_text_model("llama", tmp_path / "model.gguf")
    for reason, pair in (
        ("mismatch between text model", MediaPair("", janus.model, narrow)),
        (r"ended while .* \(signal SIGABRT\)", MediaPair("", audio.model, broken)),
        ("lacks marker tokens", MediaPair("", model, tiles.projector)),
    ):
        with pytest.raises(StartupError, match=reason):
            async with started(pair):
                pass


async def test_a_projector_that_was_replaced_is_refused(media_pair: Pairs, tmp_path: Path) -> None:
    """Its vectors would be mixed up with those of the projector that was described."""
    path = write_projector("janus_pro", tmp_path / "mmproj.gguf")
    described = settings(MediaPair("", media_pair("janus_pro").model, path))
    write_projector("janus_pro", tmp_path / "new.gguf", seed=1).replace(path)
    encoder = Encoder(EncoderConfig("m", described), EncoderLimits())

    with pytest.raises(StartupError, match="replaced"):
        await encoder.start()
    await encoder.close()


def test_a_folder_of_vectors_is_private_and_deleted(tmp_path: Path) -> None:
    """Folders that killed processes left are deleted with the next; those in use are not."""
    abandoned = tmp_path / "corral-media-killed_1"
    abandoned.mkdir()
    (abandoned / "lock").touch()
    (abandoned / "0.f32").touch()
    folders = [VectorFolder(tmp_path), VectorFolder(tmp_path)]

    assert sorted(tmp_path.iterdir()) == sorted(folder.path for folder in folders)
    assert {folder.path.stat().st_mode & 0o777 for folder in folders} == {0o700}
    for folder in folders:
        folder.close()
    assert list(tmp_path.iterdir()) == []
