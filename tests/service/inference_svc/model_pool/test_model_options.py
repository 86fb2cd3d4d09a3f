"""Settings of a model, with llama.cpp and the demo model."""

from array import array
from pathlib import Path
from typing import Any

import pytest

from inference_svc.engine.batch import Row, TokenBatch
from inference_svc.llama import devices, library
from inference_svc.llama.backend import BackendSettings, LlamaBackend
from inference_svc.llama.weights import ModelLoadError
from inference_svc.models.placement import Attention, FlashAttention, Placement, Rope, RopeScaling
from inference_svc.models.sources import BUNDLED_PATH
from model_files.ggml_types import KvType

TOKENS = tuple(range(10, 60))


def make_backend(progress: list[float] | None = None, **options: Any) -> LlamaBackend:
    """Load the demo model; `progress` receives the reported fractions."""
    library.start()
    settings = BackendSettings(
        BUNDLED_PATH,
        slots=1,
        context_tokens=256,
        batch_tokens=64,
        ubatch_tokens=64,
        threads=1,
        sampling_threads=1,
        **options,
    )
    return LlamaBackend(settings, (progress if progress is not None else []).append)


def logits_and_state_bytes(**options: Any) -> tuple[list[float], int]:
    """Return the logits after a fixed prompt, and the size of its state."""
    backend = make_backend(**options)
    try:
        backend.decode(TokenBatch.of([Row(0, 0, array("i", TOKENS), output=True)]))
        return backend.logits(0).tolist(), backend.state_bytes(0)
    finally:
        backend.close()


DEFAULT_LOGITS, DEFAULT_STATE_BYTES = logits_and_state_bytes()


def test_a_quantized_kv_cache_is_about_half_as_large_with_similar_logits() -> None:
    """With q8_0 for keys and values."""
    attention = Attention(KvType.Q8_0, KvType.Q8_0, FlashAttention.ON)
    logits, state_bytes = logits_and_state_bytes(attention=attention)

    assert logits != DEFAULT_LOGITS
    assert logits == pytest.approx(DEFAULT_LOGITS, abs=1.0)
    assert state_bytes < 0.6 * DEFAULT_STATE_BYTES


def test_rope_scaling_changes_the_logits() -> None:
    """Unset RoPE settings do not: those of the file apply."""
    scaled = Attention(rope=Rope(RopeScaling.LINEAR, frequency_scale=0.5))

    assert logits_and_state_bytes(attention=scaled)[0] != DEFAULT_LOGITS
    assert logits_and_state_bytes(attention=Attention(rope=Rope()))[0] == DEFAULT_LOGITS


def test_the_cell_format_has_the_kv_types_and_the_rope_settings() -> None:
    """Cells can only be restored in a context of the same format."""
    scaled = Attention(KvType.Q8_0, rope=Rope(RopeScaling.LINEAR, frequency_scale=0.5))
    backends = make_backend(), make_backend(attention=scaled)
    formats = tuple(backend.cell_format for backend in backends)
    for backend in backends:
        backend.close()

    assert formats == ("f16/f16", "q8_0/f16 scaling=linear frequency_scale=0.5")


def test_an_invalid_placement_fails_the_load() -> None:
    """For an unknown device, the error lists the available ones, such as the CPU."""
    assert "CPU" in devices.device_names()
    with pytest.raises(ModelLoadError, match=r"unknown device 'GPU9'; available devices: .*CPU"):
        make_backend(placement=Placement(devices=("GPU9",)))
    with pytest.raises(ModelLoadError, match="99 shares"):
        make_backend(placement=Placement(tensor_split=(1.0,) * 99))


@pytest.mark.parametrize("maps_file", [False, True])
def test_the_model_file_stays_mapped_only_with_maps_file(*, maps_file: bool) -> None:
    """Otherwise the weights are copied, and no mapping of the file remains."""

    def num_mappings() -> int:
        return Path("/proc/self/maps").read_text().count(str(BUNDLED_PATH))

    num_before = num_mappings()
    backend = make_backend(placement=Placement(maps_file=maps_file))
    num_added = num_mappings() - num_before
    backend.close()

    assert bool(num_added) is maps_file


def test_load_progress_increases_up_to_one() -> None:
    """No value is reported twice."""
    progress: list[float] = []
    make_backend(progress).close()

    assert progress == sorted(set(progress))
    assert progress[-1] == 1.0
