"""The demo model on llama.cpp for service tests of the inference service."""

from collections.abc import Iterator
from functools import cache

import pytest

from inference_svc.llama import devices
from inference_svc.llama.backend import LlamaBackend
from tests.support.llama_engines import clear_slots, open_backend


@pytest.fixture(scope="module")
def demo_backend() -> Iterator[LlamaBackend]:
    """The demo model with four slots of 512 tokens."""
    with open_backend(sampling_threads=2) as backend:
        yield backend


@pytest.fixture
def backend(demo_backend: LlamaBackend) -> LlamaBackend:
    """The demo model with empty slots."""
    clear_slots(demo_backend)
    return demo_backend


@cache
def _has_gpu() -> bool:
    return bool(devices.query_free_bytes())


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests of what only the processor promises."""
    if item.get_closest_marker("batch_invariant") and _has_gpu():
        pytest.skip("kernels of a GPU round differently in batches of other sizes")
