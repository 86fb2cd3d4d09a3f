"""What the command prints about the bundled model."""

from corral_cli.connection import command_name
from inference_svc.models.sources import BUNDLED_NAME

REAL_MODEL = "hf:Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf"


def is_bundled(model: str) -> bool:
    """Whether this is the name under which the bundled model is served."""
    return model == BUNDLED_NAME


def real_model_command() -> str:
    """The one command that serves a model worth talking to."""
    return f"{command_name()} up --model {REAL_MODEL}"
