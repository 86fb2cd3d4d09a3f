"""What is refused before anything is loaded."""

from pathlib import Path

import pytest

from inference_svc.app import build
from inference_svc.config import InferenceSettings
from svc_kit.lifecycle import StartupError
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
