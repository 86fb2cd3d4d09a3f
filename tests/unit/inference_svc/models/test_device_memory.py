"""Tests of dividing a model among devices."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_svc.models.device_memory import DeviceBytes, LayerSplit
from inference_svc.models.placement import Placement, SplitMode

FREE = DeviceBytes(1000, {"CUDA0": 240, "CUDA1": 80})


def make_split(**placement: Any) -> LayerSplit:
    """The split of 32 layers: 31 and the output."""
    return LayerSplit(Placement(**placement), num_layers=31)


def test_bytes_are_added_and_subtracted_by_device() -> None:
    """No result is negative."""
    more = DeviceBytes(1, {"CUDA1": 2})

    assert FREE + more == DeviceBytes(1001, {"CUDA0": 240, "CUDA1": 82})
    assert FREE.without(more) == DeviceBytes(999, {"CUDA0": 240, "CUDA1": 78})
    assert FREE.without(DeviceBytes(2000, {"CUDA1": 100})) == DeviceBytes(
        0, {"CUDA0": 240, "CUDA1": 0}
    )
    assert FREE.total == 1320


def test_is_on_finds_bytes_on_any_of_the_places() -> None:
    """None is the machine."""
    assert FREE.is_on({"CUDA1"})
    assert FREE.is_on({None, "CUDA2"})
    assert not DeviceBytes(0, {"CUDA0": 0, "CUDA1": 1}).is_on({None, "CUDA0"})


@pytest.mark.parametrize(
    ("placement", "shares", "fitting"),
    [
        # Proportional to free memory, llama.cpp's default.
        ({}, {"CUDA0": 0.75, "CUDA1": 0.25}, 320),
        ({"gpu_layers": 99}, {"CUDA0": 0.75, "CUDA1": 0.25}, 320),
        # Half of the layers on the GPUs.
        ({"gpu_layers": 16}, {"CUDA0": 0.375, "CUDA1": 0.125}, 640),
        ({"gpu_layers": 0}, {}, 1000),
        ({"devices": ("CUDA1",)}, {"CUDA1": 1.0}, 80),
        # Equal shares: the smaller GPU is the limit.
        ({"tensor_split": (1.0, 1.0)}, {"CUDA0": 0.5, "CUDA1": 0.5}, 160),
        ({"tensor_split": (1.0,)}, {"CUDA0": 1.0}, 240),
        (
            {"tensor_split": (1.0, 3.0), "devices": ("CUDA1", "CUDA0")},
            {"CUDA1": 0.25, "CUDA0": 0.75},
            320,
        ),
        ({"split_mode": SplitMode.NONE, "main_device": 1}, {"CUDA1": 1.0}, 80),
        # A device without memory of its own uses the machine's.
        ({"devices": ("CPU",)}, {}, 1000),
    ],
)
def test_a_model_is_divided_by_its_placement(
    placement: dict[str, Any], shares: dict[str, float], fitting: int
) -> None:
    """The fullest device limits its size."""
    split = make_split(**placement)

    assert split.shares(FREE) == pytest.approx(shares)
    assert split.fitting_bytes(FREE) == pytest.approx(fitting, abs=1)


def test_without_gpus_a_model_uses_the_machine() -> None:
    """Regardless of its placement."""
    machine = DeviceBytes(1000)

    assert make_split().fitting_bytes(machine) == 1000
    assert make_split(gpu_layers=5).divide(300, machine) == DeviceBytes(300)
    assert make_split(split_mode=SplitMode.NONE).places(machine) == {None}


def test_nothing_fits_on_a_full_gpu() -> None:
    """It is not skipped."""
    full = DeviceBytes(1000, {"CUDA0": 0})

    assert make_split().fitting_bytes(full) == 0
    assert make_split(gpu_layers=1).fitting_bytes(full) == 0


def test_places_are_the_devices_with_a_share() -> None:
    """None is the machine."""
    assert make_split().places(FREE) == {"CUDA0", "CUDA1"}
    assert make_split(gpu_layers=3, devices=("CUDA0",)).places(FREE) == {"CUDA0", None}


@given(
    st.integers(-1, 40),
    st.lists(st.integers(0, 5), max_size=3),
    st.integers(0, 10**12),
    st.lists(st.integers(1, 10**12), min_size=0, max_size=3),
)
def test_a_model_of_the_fitting_size_fits_on_every_device(
    layers: int, split: list[int], host: int, devices: list[int]
) -> None:
    """And the parts add up to its size."""
    free = DeviceBytes(host, {f"CUDA{index}": size for index, size in enumerate(devices)})
    layer_split = make_split(gpu_layers=layers, tensor_split=tuple(map(float, split)))
    size = layer_split.fitting_bytes(free)
    divided = layer_split.divide(size, free)

    assert divided.total == size
    assert divided.host <= free.host + len(devices)  # rounding
    assert all(used <= free.devices[name] for name, used in divided.devices.items())
