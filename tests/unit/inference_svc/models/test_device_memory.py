"""Which bytes of a model go where, and how much of it fits."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_svc.models.device_memory import DeviceBytes, LayerSplit
from inference_svc.models.placement import Placement, SplitMode

FREE = DeviceBytes(1000, {"CUDA0": 240, "CUDA1": 80})


def a_spread(**placement: Any) -> LayerSplit:
    """31 layers and the output are 32 parts."""
    return LayerSplit(Placement(**placement), num_layers=31)


def test_places_are_added_and_taken_one_by_one() -> None:
    """Nothing is ever less than nothing."""
    more = DeviceBytes(1, {"CUDA1": 2})

    assert FREE + more == DeviceBytes(1001, {"CUDA0": 240, "CUDA1": 82})
    assert FREE.without(more) == DeviceBytes(999, {"CUDA0": 240, "CUDA1": 78})
    assert FREE.without(DeviceBytes(2000, {"CUDA1": 100})) == DeviceBytes(
        0, {"CUDA0": 240, "CUDA1": 0}
    )
    assert FREE.total == 1320


def test_bytes_are_on_a_place_where_there_are_any() -> None:
    """None is the machine."""
    assert FREE.is_on({"CUDA1"})
    assert FREE.is_on({None, "CUDA2"})
    assert not DeviceBytes(0, {"CUDA0": 0, "CUDA1": 1}).is_on({None, "CUDA0"})


@pytest.mark.parametrize(
    ("placement", "shares", "fitting"),
    [
        # All GPUs by what they have free, as llama.cpp divides where nobody says.
        ({}, {"CUDA0": 0.75, "CUDA1": 0.25}, 320),
        ({"gpu_layers": 99}, {"CUDA0": 0.75, "CUDA1": 0.25}, 320),
        # Half of the layers: what stays in the machine is no more than what leaves it.
        ({"gpu_layers": 16}, {"CUDA0": 0.375, "CUDA1": 0.125}, 640),
        ({"gpu_layers": 0}, {}, 1000),
        ({"devices": ("CUDA1",)}, {"CUDA1": 1.0}, 80),
        # Equal shares: the smaller one is full first.
        ({"tensor_split": (1.0, 1.0)}, {"CUDA0": 0.5, "CUDA1": 0.5}, 160),
        ({"tensor_split": (1.0,)}, {"CUDA0": 1.0}, 240),
        (
            {"tensor_split": (1.0, 3.0), "devices": ("CUDA1", "CUDA0")},
            {"CUDA1": 0.25, "CUDA0": 0.75},
            320,
        ),
        ({"split_mode": SplitMode.NONE, "main_device": 1}, {"CUDA1": 1.0}, 80),
        # One that has no memory of its own is the machine.
        ({"devices": ("CPU",)}, {}, 1000),
    ],
)
def test_a_model_goes_where_its_placement_says(
    placement: dict[str, Any], shares: dict[str, float], fitting: int
) -> None:
    """And is as large as the fullest place allows."""
    spread = a_spread(**placement)

    assert spread.shares(FREE) == pytest.approx(shares)
    assert spread.fitting_bytes(FREE) == pytest.approx(fitting, abs=1)


def test_without_a_gpu_all_is_the_machines() -> None:
    """Whatever was asked for."""
    machine = DeviceBytes(1000)

    assert a_spread().fitting_bytes(machine) == 1000
    assert a_spread(gpu_layers=5).divide(300, machine) == DeviceBytes(300)
    assert a_spread(split_mode=SplitMode.NONE).places(machine) == {None}


def test_a_full_gpu_takes_nothing() -> None:
    """It is not skipped."""
    full = DeviceBytes(1000, {"CUDA0": 0})

    assert a_spread().fitting_bytes(full) == 0
    assert a_spread(gpu_layers=1).fitting_bytes(full) == 0


def test_places_are_where_any_of_it_goes() -> None:
    """None is the machine."""
    assert a_spread().places(FREE) == {"CUDA0", "CUDA1"}
    assert a_spread(gpu_layers=3, devices=("CUDA0",)).places(FREE) == {"CUDA0", None}


@given(
    st.integers(-1, 40),
    st.lists(st.integers(0, 5), max_size=3),
    st.integers(0, 10**12),
    st.lists(st.integers(1, 10**12), min_size=0, max_size=3),
)
def test_what_fits_fits_everywhere(
    layers: int, split: list[int], host: int, devices: list[int]
) -> None:
    """The largest model that fits, divided, is nowhere more than there is; and all of it is
    somewhere."""
    free = DeviceBytes(host, {f"CUDA{index}": size for index, size in enumerate(devices)})
    spread = a_spread(gpu_layers=layers, tensor_split=tuple(map(float, split)))
    size = spread.fitting_bytes(free)
    divided = spread.divide(size, free)

    assert divided.total == size
    assert divided.host <= free.host + len(devices)  # rounding
    assert all(taken <= free.devices[name] for name, taken in divided.devices.items())
