"""Models of each memory type."""

from pathlib import Path

import pytest

from inference_svc.models.sources import BUNDLED_PATH
from tests.support.model_kinds import write_model_of_kind


@pytest.fixture(scope="module", params=["attention", "window", "recurrent", "hybrid"])
def model_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model, which has attention only, and a random model of each other memory type."""
    if request.param == "attention":
        return BUNDLED_PATH
    path: Path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    return write_model_of_kind(request.param, path)
