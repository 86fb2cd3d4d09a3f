"""What an operator chooses for a model, on the real engine."""

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


def a_backend(told: list[float] | None = None, **options: Any) -> LlamaBackend:
    """The demo model with some of its options."""
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
    return LlamaBackend(settings, (told if told is not None else []).append)


def logits_and_state_bytes(**options: Any) -> tuple[list[float], int]:
    """The scores after a fixed text, and what its cells take."""
    backend = a_backend(**options)
    try:
        backend.decode(TokenBatch.of([Row(0, 0, array("i", TOKENS), output=True)]))
        return backend._row(0).tolist(), backend.state_bytes(0)
    finally:
        backend.close()


PLAIN = logits_and_state_bytes()


def test_a_quantized_cache_takes_half_the_room_and_says_nearly_the_same() -> None:
    """Keys and values in eight bits."""
    attention = Attention(KvType.Q8_0, KvType.Q8_0, FlashAttention.ON)
    logits, size = logits_and_state_bytes(attention=attention)

    assert logits != PLAIN[0]
    assert logits == pytest.approx(PLAIN[0], abs=1.0)
    assert size < 0.6 * PLAIN[1]


def test_rope_settings_move_positions() -> None:
    """A stretched context gives other scores; the file's own settings give the same."""
    stretched = Attention(rope=Rope(RopeScaling.LINEAR, frequency_scale=0.5))

    assert logits_and_state_bytes(attention=stretched)[0] != PLAIN[0]
    assert logits_and_state_bytes(attention=Attention(rope=Rope()))[0] == PLAIN[0]


def test_cells_are_told_apart_by_what_they_depend_on() -> None:
    """Those of a stretched context are no use in another: a file says which they are."""
    stretched = Attention(KvType.Q8_0, rope=Rope(RopeScaling.LINEAR, frequency_scale=0.5))
    plain, other = a_backend(), a_backend(attention=stretched)
    formats = plain.cell_format, other.cell_format
    plain.close()
    other.close()

    assert formats == ("f16/f16", "q8_0/f16 scaling=linear frequency_scale=0.5")


def test_devices_are_chosen_by_name() -> None:
    """The processor is one; what is not there is named together with what is."""
    assert "CPU" in devices.device_names()
    with pytest.raises(ModelLoadError, match=r"unknown device 'GPU9'; available devices: .*CPU"):
        a_backend(placement=Placement(devices=("GPU9",)))
    with pytest.raises(ModelLoadError, match="99 shares"):
        a_backend(placement=Placement(tensor_split=(1.0,) * 99))


@pytest.mark.parametrize("maps_file", [False, True])
def test_weights_are_copied_or_stay_in_their_file(*, maps_file: bool) -> None:
    """Copied where nothing else is said: copies lie in huge pages."""

    def num_mappings() -> int:
        return Path("/proc/self/maps").read_text().count(str(BUNDLED_PATH))

    before = num_mappings()
    backend = a_backend(placement=Placement(maps_file=maps_file))
    mapped = num_mappings() - before
    backend.close()

    assert bool(mapped) is maps_file


def test_reading_weights_is_told_by_the_percent() -> None:
    """From little to everything, and nothing twice."""
    told: list[float] = []
    a_backend(told).close()

    assert told == sorted(set(told))
    assert told[-1] == 1.0
