"""Models that are refused when the service starts."""

from pathlib import Path

import pytest

from inference_svc.app import build
from inference_svc.config import InferenceSettings
from svc_kit.lifecycle import StartupError
from tests.support.gguf_files import gguf_bytes, model_metadata


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [("clip", "mmproj"), ("llada", "diffusion"), ("cogvlm", "logits")],
)
async def test_a_model_of_an_unsupported_kind_fails_the_start(
    tmp_path: Path, architecture: str, reason: str
) -> None:
    """The error has the name of the model and the reason."""
    metadata = {
        key.replace("llama.", f"{architecture}."): value
        for key, value in model_metadata(general__architecture=architecture).items()
    }
    path = tmp_path / "odd.gguf"
    path.write_bytes(gguf_bytes(metadata))
    settings = InferenceSettings(
        models=[f"odd={path}"], listen="127.0.0.1:0", management_listen=None
    )
    with pytest.raises(StartupError, match=reason) as error:
        async with build(settings):
            pass

    assert "odd" in str(error.value)
