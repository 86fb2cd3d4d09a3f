"""The vocabulary of the demo model for unit tests of the inference service."""

from collections.abc import Iterator

import pytest

from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.models.sources import BUNDLED_PATH


@pytest.fixture(scope="session")
def vocabulary() -> Iterator[Vocabulary]:
    vocabulary = Vocabulary.load(BUNDLED_PATH)
    yield vocabulary
    vocabulary.close()
