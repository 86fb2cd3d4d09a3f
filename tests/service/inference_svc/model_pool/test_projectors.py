"""Models with projectors in a service: found, loaded, described and unloaded."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corral.inference.v1 import model_pb2 as model_pb

from inference_svc.app import Inference, build
from inference_svc.config import EngineSettings, InferenceSettings, MediaSettings
from inference_svc.engine.media import MediaKind
from inference_svc.gauges import MediaGauges
from inference_svc.media.processor import MediaInput
from inference_svc.model_pool.catalog import ModelEntry
from inference_svc.model_pool.eviction import ModelState
from inference_svc.model_settings import ModelSettings
from inference_svc.models.memory_plan import ResolvedLimits, planned_bytes
from inference_svc.models.metadata import describe_model
from inference_svc.models.projector_file import describe_projector
from inference_svc.rpc.model_info import model as describe
from svc_kit.errors import ModelLoadFailed, ModelUnloaded
from svc_kit.lifecycle import StartupError
from tests.support.media_models import WIDTH, MediaPair, picture, png_file, write_projector

Pairs = Callable[[str], MediaPair]
INPUT = MediaInput("image", MediaKind.IMAGE, png_file(picture(90, 90)))


@asynccontextmanager
async def served(
    model: Path, folder: Path, **overrides: Any
) -> AsyncIterator[tuple[Inference, ModelEntry]]:
    settings = InferenceSettings(
        models=[f"m={model}"],
        listen="127.0.0.1:0",
        management_listen=None,
        control_target=None,
        data_dir=folder,
        engine=EngineSettings(slots=1, context_tokens=512, warm_up_s=0.0, threads=1),
        media=MediaSettings(folder=folder),
        per_model={"m": ModelSettings(**overrides)},
    )
    async with build(settings) as inference:
        yield inference, inference.pool.catalog.find_model("m")


def vector_folders(folder: Path) -> list[Path]:
    """The folders of encoded pictures."""
    return list(folder.glob("corral-media-*"))


MODALITIES = {
    "gemma3": [model_pb.MODALITY_TEXT, model_pb.MODALITY_IMAGE],
    "qwen2a": [model_pb.MODALITY_TEXT, model_pb.MODALITY_AUDIO],
    "gemma4uv": [model_pb.MODALITY_TEXT, model_pb.MODALITY_IMAGE, model_pb.MODALITY_AUDIO],
}


@pytest.mark.parametrize("kind", MODALITIES)
async def test_a_model_with_its_projector_says_what_it_reads(
    kind: str, media_pair: Pairs, tmp_path: Path
) -> None:
    """Before it is loaded too, since clients choose a model by that. An operator may switch the
    projector off."""
    pair = media_pair(kind)
    async with served(pair.model, tmp_path, load="on_demand") as (inference, entry):
        resolved = inference.pool.catalog.resolve("m", "")
        assert list(describe(resolved).input_modalities) == MODALITIES[kind]
        assert entry.media is None

        async with inference.pool.use(entry) as loaded:
            assert loaded.media is not None
        assert list(describe(resolved).input_modalities) == MODALITIES[kind]

        rss = entry.engine.memory.total if entry.engine is not None else 0
        assert describe(resolved).memory_bytes > rss

        await inference.pool.unload(entry, force=False, wait=True)
        assert entry.media is None
    assert vector_folders(tmp_path) == []

    async with served(pair.model, tmp_path, projector="none") as (inference, entry):
        described = describe(inference.pool.catalog.resolve("m", ""))
        assert list(described.input_modalities) == MODALITIES[kind][:1]
        assert entry.media is None


async def test_pictures_are_encoded_for_a_loaded_model(media_pair: Pairs, tmp_path: Path) -> None:
    """The crash of its encoder leaves the engine alone. Metrics count both."""
    async with served(media_pair("gemma3").model, tmp_path) as (inference, entry):
        async with inference.pool.use(entry) as loaded:
            assert loaded.media is not None
            lease = await loaded.media.encode([INPUT], owner="a", project="a")
            assert [chunk.num_tokens for chunk in lease.media[0].chunks] == [1, 16, 1]
            lease.release()
            os.kill(loaded.media.encoder.pid, signal.SIGKILL)
            other = MediaInput("image", MediaKind.IMAGE, png_file(picture(90, 90, seed=1)))
            lease = await loaded.media.encode([other], owner="a", project="a")
            assert len(lease.media) == 1
            lease.release()
            assert loaded.engine.restarts == 0
            samples = {
                sample.name.removeprefix("corral_media_"): sample.value
                for metric in MediaGauges(lambda: inference.pool.catalog.media).collect()
                for sample in metric.samples
                if sample.labels == {"model": "m"}
            }
        assert entry.resident.state is ModelState.READY
    assert samples.pop("encode_seconds_total") > 0
    assert samples == {
        "waiting": 0,
        "cache_bytes": 2 * 16 * WIDTH * 4,
        "cache_limit_bytes": 512 << 20,
        "encoded_total": 2,
        "encoder_crashes_total": 1,
        "cache_hits_total": 0,
        "cache_misses_total": 2,
    }


async def test_an_encoder_that_its_engine_left_stopped_continues(
    media_pair: Pairs, tmp_path: Path
) -> None:
    """The engine was killed in a step."""
    async with (
        served(media_pair("gemma3").model, tmp_path) as (inference, entry),
        inference.pool.use(entry) as loaded,
    ):
        assert loaded.media is not None
        os.kill(loaded.media.encoder.pid, signal.SIGSTOP)
        os.kill(loaded.engine.pid, signal.SIGKILL)
        lease = await loaded.media.encode([INPUT], owner="a", project="a")
        assert len(lease.media) == 1
        lease.release()


async def test_a_projector_that_does_not_fit_fails_the_load(
    media_pair: Pairs, tmp_path: Path
) -> None:
    """The file, the reason and a way out are in the error, or the setting of a bad folder."""
    narrow = write_projector("gemma3", tmp_path / "mmproj.gguf", width=64)
    model = media_pair("gemma3").model
    overrides = {"projector": str(narrow), "load": "on_demand"}
    async with served(model, tmp_path, **overrides) as (inference, entry):
        with pytest.raises(ModelLoadFailed, match=r"mmproj\.gguf.*n_embd.*projector to \"none\""):
            async with inference.pool.use(entry):
                pass
        assert entry.media is None
    assert vector_folders(tmp_path) == []

    (tmp_path / "file").touch()
    for folder, reason in ((tmp_path, "mismatch"), (tmp_path / "file", r"media\.folder: ")):
        with pytest.raises(StartupError, match=reason):
            async with served(model, folder, projector=str(narrow)):
                pass


async def test_a_forced_unload_ends_waiting_pictures(media_pair: Pairs, tmp_path: Path) -> None:
    """They would keep the model in use."""
    async with (
        served(media_pair("janus_pro").model, tmp_path) as (inference, entry),
        inference.pool.use(entry) as loaded,
    ):
        assert loaded.media is not None
        os.kill(loaded.media.encoder.pid, signal.SIGSTOP)
        task = asyncio.create_task(loaded.media.encode([INPUT], owner="a", project="a"))
        await asyncio.sleep(0)
        await inference.pool.unload(entry, force=True, wait=False)
        with pytest.raises(ModelUnloaded):
            await task


def test_the_memory_of_the_projector_is_planned(media_pair: Pairs, tmp_path: Path) -> None:
    """A load must not take memory of others that was not counted."""
    pair = media_pair("janus_pro")
    file, limits = describe_model(pair.model, "m"), ResolvedLimits(1, 512, 0, "")
    projector = describe_projector(pair.projector)
    both = replace(file, projector=projector)

    added = planned_bytes(both, limits) - planned_bytes(file, limits)
    assert added > projector.size_bytes
