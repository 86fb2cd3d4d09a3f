"""A server of their own: random requests change its state."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.services import Corral, corral_up


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def corral(folder: Path) -> Iterator[Corral]:
    """`corral up` without keys. Answers without a limit end soon, as contexts are small."""
    inference = {"engine.slots": 4, "engine.context_tokens": 1024, "vllm_engine.enabled": True}
    with corral_up(folder, inference=inference) as running:
        yield running
