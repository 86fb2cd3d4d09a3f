"""The demo model on GPUs: what it computes there, and what is counted of their memory.

Needs llama.cpp built with a GPU backend, and the GPU (docs/operate/models.md has the steps).
"""

import logging
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from inference_svc.app import build
from inference_svc.config import EngineSettings, InferenceSettings
from inference_svc.engine.batch import Row, TokenBatch
from inference_svc.engine.embedding_request import EmbeddingRequest
from inference_svc.engine_client.client import EngineClient
from inference_svc.engine_client.messages import EngineConfig, ModelConfig
from inference_svc.engine_client.output_stream import ReaderLimits
from inference_svc.engine_client.queue_limits import QueueLimits
from inference_svc.llama import devices, library
from inference_svc.llama.backend import BackendSettings, LlamaBackend
from inference_svc.llama.embeddings import EmbeddingSettings
from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.llama.weights import ModelLoadError
from inference_svc.model_pool.catalog import ResolvedModel
from inference_svc.models.metadata import Pooling, describe_model
from inference_svc.models.placement import ON_PROCESSOR, Placement
from inference_svc.models.sources import BUNDLED_PATH
from inference_svc.rpc import model_info
from svc_kit.lifecycle import StartupError


def free_bytes() -> dict[str, int]:
    """What each GPU has free, as another process sees it."""
    return devices.free_bytes_from_outside() or {}


GPUS = free_bytes()
MODEL = describe_model(BUNDLED_PATH, "demo")
TOKENS = array("i", range(10, 60))
ALL_LAYERS = Placement()

pytestmark = pytest.mark.skipif(not GPUS, reason="no GPU device in this build")


def settings(placement: Placement = ALL_LAYERS, **options: Any) -> BackendSettings:
    """One slot of the demo model."""
    chosen: dict[str, Any] = {
        "slots": 1,
        "context_tokens": 2048,
        "batch_tokens": 128,
        "ubatch_tokens": 128,
        "threads": 1,
        "sampling_threads": 1,
    }
    return BackendSettings(BUNDLED_PATH, placement=placement, **(chosen | options))


@asynccontextmanager
async def an_engine(placement: Placement) -> AsyncIterator[EngineClient]:
    """A process that generates and embeds."""
    embedding = EmbeddingSettings(
        "demo",
        Pooling.LAST,
        is_causal=True,
        input_tokens=2048,
        pack_tokens=128,
        threads=1,
        cell_bytes=MODEL.kv_bytes_per_token,
    )
    model = ModelConfig("demo", settings(placement), 64, threads=1, embedding=embedding)
    worker = EngineClient(
        EngineConfig(model, cores=2, log_level="info", log_json=True, warm_up_budget_s=0.1),
        QueueLimits(4, 10_000),
        ReaderLimits(1000, 60.0),
    )
    await worker.start()
    try:
        yield worker
    finally:
        await worker.close()


def scores(placement: Placement) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What the model says after a fixed text."""
    library.start()
    backend = LlamaBackend(settings(placement))
    try:
        backend.decode(TokenBatch.of([Row(0, 0, TOKENS, output=True)]))
        return np.array(backend._row(0))
    finally:
        backend.close()


async def test_what_an_engine_takes_is_counted() -> None:
    """Weights and cells at least, and no more than another process sees go."""
    async with an_engine(ALL_LAYERS) as engine:
        seen = free_bytes()
        counted = engine.memory.devices

    least = MODEL.size_bytes // 2 + 2048 * MODEL.kv_bytes_per_token
    assert sum(counted.values()) > least
    assert all(size <= GPUS[name] - seen[name] for name, size in counted.items())


async def test_a_context_for_embeddings_is_counted_when_it_is_made() -> None:
    """The first request makes it, on the same GPUs."""
    async with an_engine(ALL_LAYERS) as engine:
        loaded = sum(engine.memory.devices.values())
        await engine.embed(EmbeddingRequest(0, "demo", (TOKENS,)))
        seen = free_bytes()
        grown = engine.memory.devices

    assert sum(grown.values()) > loaded + 2048 * MODEL.kv_bytes_per_token // 2
    assert all(size <= GPUS[name] - seen[name] for name, size in grown.items())


async def test_some_layers_take_less_than_all() -> None:
    """And none take nothing."""
    taken = []
    for layers in (-1, MODEL.num_layers // 2, 0):
        async with an_engine(Placement(gpu_layers=layers)) as engine:
            taken.append(sum(engine.memory.devices.values()))

    assert taken[0] > taken[1] > taken[2] == 0


async def test_a_gpu_that_is_named_is_the_only_one() -> None:
    """The last, which llama.cpp would not take first."""
    name = list(GPUS)[-1]
    async with an_engine(Placement(devices=(name,))) as engine:
        assert engine.memory.devices.keys() == {name}


@pytest.mark.parametrize("layers", [-1, 3])
def test_a_gpu_computes_what_the_processor_does(layers: int) -> None:
    """But for rounding."""
    here, there = scores(ON_PROCESSOR), scores(Placement(gpu_layers=layers))

    assert np.corrcoef(here, there)[0, 1] > 0.999


def test_no_gpu_is_touched_that_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    """Neither by a vocabulary nor by a model without a layer there: drivers take memory for every
    process that asks."""
    caplog.set_level(logging.DEBUG, "llama.cpp")
    Vocabulary.load(BUNDLED_PATH).close()
    scores(ON_PROCESSOR)
    assert "using device" not in caplog.text

    scores(ALL_LAYERS)
    assert "using device" in caplog.text


def test_cells_that_no_gpu_has_are_refused_by_llama_cpp_too() -> None:
    """Should a plan be wrong: an error, and the process lives."""
    tokens = sum(GPUS.values()) // MODEL.kv_bytes_per_token
    with pytest.raises(ModelLoadError, match="no memory for 1 slots"):
        LlamaBackend(settings(context_tokens=tokens))

    scores(ALL_LAYERS)


async def test_a_load_that_fits_no_gpu_is_refused_with_the_sum() -> None:
    """Whatever the machine has besides."""
    tokens = sum(GPUS.values()) // MODEL.kv_bytes_per_token
    wanted = InferenceSettings(
        models=["bundled"],
        listen="127.0.0.1:0",
        management_listen=None,
        engine=EngineSettings(slots=1, context_tokens=tokens),
    )
    with pytest.raises(StartupError, match=r"needs \d+ bytes of memory, (\d+) are") as refusal:
        async with build(wanted):
            pass

    assert f"{sum(free_bytes().values())} are available" in str(refusal.value)


async def test_an_operator_sees_what_a_model_has_of_each_gpu() -> None:
    """It is a part of all that it takes."""
    wanted = InferenceSettings(
        models=["bundled"],
        listen="127.0.0.1:0",
        management_listen=None,
        engine=EngineSettings(slots=1, context_tokens=2048, warm_up_s=0.1),
    )
    async with build(wanted) as inference:
        (known,) = inference.pool.catalog
        shown = model_info.model(ResolvedModel(known))

    assert shown.device_memory_bytes.keys() <= GPUS.keys()
    assert 0 < sum(shown.device_memory_bytes.values()) < shown.memory_bytes
