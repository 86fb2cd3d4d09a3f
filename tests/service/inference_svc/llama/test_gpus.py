"""The demo model on GPUs: results and memory usage.

Needs llama.cpp built with a GPU backend, and the GPU (docs/operate/models.md has the steps).
"""

import logging
import re
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
from inference_svc.engine_client.local_engine import LocalEngine
from inference_svc.engine_client.messages import EngineConfig
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
from tests.support.llama_engines import make_settings


def free_bytes() -> dict[str, int]:
    """The free memory of each GPU, queried by another process."""
    return devices.query_free_bytes() or {}


GPUS = free_bytes()
MODEL = describe_model(BUNDLED_PATH, "demo")
TOKENS = array("i", range(10, 60))
ALL_LAYERS = Placement()

pytestmark = pytest.mark.skipif(not GPUS, reason="no GPU device in this build")


def settings(placement: Placement = ALL_LAYERS, context_tokens: int = 2048) -> BackendSettings:
    """One slot of the demo model."""
    sizes: dict[str, Any] = {
        "context_tokens": context_tokens,
        "batch_tokens": 128,
        "ubatch_tokens": 128,
    }
    return make_settings(placement=placement, slots=1, **sizes)


@asynccontextmanager
async def start_engine(placement: Placement) -> AsyncIterator[EngineClient]:
    """Start an engine process that generates and embeds."""
    embedding = EmbeddingSettings(
        "demo",
        Pooling.LAST,
        is_causal=True,
        input_tokens=2048,
        pack_tokens=128,
        threads=1,
        cell_bytes=MODEL.kv_bytes_per_token,
    )
    config = EngineConfig(
        "demo",
        settings(placement),
        chunk_cap=64,
        threads=1,
        cores=2,
        warm_up_budget_s=0.1,
        embedding=embedding,
    )
    client = EngineClient(
        "demo",
        LocalEngine(config).spawn,
        QueueLimits(4, 10_000, 1000),
        ReaderLimits(1000, 60.0),
    )
    await client.start()
    try:
        yield client
    finally:
        await client.close()


def logits(placement: Placement) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The logits after a fixed prompt."""
    library.start()
    backend = LlamaBackend(settings(placement))
    try:
        backend.decode(TokenBatch.of([Row(0, 0, TOKENS, output=True)]))
        return np.array(backend.logits(0))
    finally:
        backend.close()


async def test_the_memory_usage_of_an_engine_is_tracked() -> None:
    """At least weights and cells, and at most what another process sees disappear."""
    async with start_engine(ALL_LAYERS) as engine:
        free = free_bytes()
        used = engine.memory.devices

    assert sum(used.values()) > MODEL.size_bytes // 2 + 2048 * MODEL.kv_bytes_per_token
    assert all(size <= GPUS[name] - free[name] for name, size in used.items())


async def test_the_context_for_embeddings_is_tracked() -> None:
    """The first request creates it, on the same GPUs."""
    async with start_engine(ALL_LAYERS) as engine:
        loaded = sum(engine.memory.devices.values())
        await engine.embed(EmbeddingRequest(0, "demo", (TOKENS,)))
        free = free_bytes()
        used = engine.memory.devices

    assert sum(used.values()) > loaded + 2048 * MODEL.kv_bytes_per_token // 2
    assert all(size <= GPUS[name] - free[name] for name, size in used.items())


async def test_fewer_layers_use_less_memory() -> None:
    """Or as much, since drivers allocate whole megabytes; and no layers use none."""
    used = []
    for layers in (-1, MODEL.num_layers // 2, 0):
        async with start_engine(Placement(gpu_layers=layers)) as engine:
            used.append(sum(engine.memory.devices.values()))

    assert used[0] >= used[1] > used[2] == 0


async def test_only_a_named_gpu_is_used() -> None:
    """The last one, which llama.cpp would not use first."""
    name = list(GPUS)[-1]
    async with start_engine(Placement(devices=(name,))) as engine:
        assert engine.memory.devices.keys() == {name}


@pytest.mark.parametrize("layers", [-1, 3])
def test_a_gpu_computes_the_same_logits_as_the_cpu(layers: int) -> None:
    """Except for rounding."""
    on_cpu, on_gpu = logits(ON_PROCESSOR), logits(Placement(gpu_layers=layers))

    assert np.corrcoef(on_cpu, on_gpu)[0, 1] > 0.999


def test_unused_gpus_are_not_initialized(caplog: pytest.LogCaptureFixture) -> None:
    """Neither by a vocabulary nor by a model without layers there: drivers allocate memory for each
    process that initializes them."""
    caplog.set_level(logging.DEBUG, "llama.cpp")
    Vocabulary.load(BUNDLED_PATH).close()
    logits(ON_PROCESSOR)
    assert "using device" not in caplog.text

    logits(ALL_LAYERS)
    assert "using device" in caplog.text


def test_a_context_larger_than_all_gpus_is_a_load_error() -> None:
    """If a memory plan is wrong, llama.cpp fails without ending the process."""
    tokens = sum(GPUS.values()) // MODEL.kv_bytes_per_token
    with pytest.raises(ModelLoadError, match="not enough memory for 1 slots"):
        LlamaBackend(settings(context_tokens=tokens))

    logits(ALL_LAYERS)


def service_settings(context_tokens: int) -> InferenceSettings:
    """A service with one slot of the demo model."""
    return InferenceSettings(
        models=["bundled"],
        listen="127.0.0.1:0",
        management_listen=None,
        engine=EngineSettings(slots=1, context_tokens=context_tokens, warm_up_s=0.1),
    )


async def test_a_model_that_fits_no_gpu_is_refused() -> None:
    """With both sizes, whatever the memory of the machine is."""
    tokens = sum(GPUS.values()) // MODEL.kv_bytes_per_token
    message = r"needs \d+ bytes of memory, but only (\d+) are available"
    with pytest.raises(StartupError, match=message) as refusal:
        async with build(service_settings(tokens)):
            pass

    sizes = re.search(message, str(refusal.value))
    assert sizes is not None
    assert 0 < int(sizes[1]) <= sum(GPUS.values())


async def test_the_management_api_shows_the_memory_usage_of_each_gpu() -> None:
    """It is a part of the model's total usage."""
    async with build(service_settings(2048)) as inference:
        (known,) = inference.pool.catalog
        info = model_info.model(ResolvedModel(known))

    assert info.device_memory_bytes.keys() <= GPUS.keys()
    assert 0 < sum(info.device_memory_bytes.values()) < info.memory_bytes
