"""What is refused before anything is loaded."""

import shutil
from pathlib import Path

import pytest

from inference_svc.app import build
from inference_svc.config import InferenceSettings
from inference_svc.llama.weights import ModelLoadError
from inference_svc.loading.booting import Booting
from inference_svc.models.description import describe_model
from inference_svc.models.references import BUNDLED_PATH
from inference_svc.models.sizing import RequestedLimits, ResolvedLimits
from inference_svc.runtime.loading import load
from svc_kit.startup import StartupError
from tests.support.gguf_files import gguf_bytes, model_metadata


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [("t5", "encoder_decoder"), ("clip", "mmproj"), ("llada", "diffusion")],
)
async def test_models_that_are_not_served_are_refused_at_load(
    tmp_path: Path, architecture: str, reason: str
) -> None:
    """The service does not start, and says which model and why."""
    metadata = {
        key.replace("llama.", f"{architecture}."): value
        for key, value in model_metadata(general__architecture=architecture).items()
    }
    path = tmp_path / "odd.gguf"
    path.write_bytes(gguf_bytes(metadata))
    settings = InferenceSettings(
        models=[f"odd={path}"], listen="127.0.0.1:0", management_listen=None
    )
    with pytest.raises(StartupError, match=reason) as refusal:
        async with build(settings):
            pass

    assert "odd" in str(refusal.value)


def test_an_engine_loads_only_what_was_described(tmp_path: Path) -> None:
    """One that comes back after a death may find other weights under the same name, for which the
    vocabulary and the digest that are known are wrong."""
    path = Path(shutil.copy(BUNDLED_PATH, tmp_path / "m.gguf"))
    file = describe_model(path, "m")
    boot = Booting(InferenceSettings(), 1).boot(
        file, RequestedLimits(), ResolvedLimits(1, 256, 0, "")
    )
    shutil.copy(BUNDLED_PATH, path)

    with pytest.raises(ModelLoadError, match="the files of m were replaced"):
        load(boot)
