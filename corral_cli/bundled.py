"""Recognizes the bundled demo model, and suggests a real one."""

from corral_cli.connection import command_name
from inference_svc.models.sources import BUNDLED_NAME

REAL_MODEL = "hf:Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf"


def is_bundled(model: str) -> bool:
    """Whether `model` is the name of the bundled model."""
    return model == BUNDLED_NAME


def real_model_command() -> str:
    """Return the command that serves a useful model."""
    return f"{command_name()} up --model {REAL_MODEL}"
