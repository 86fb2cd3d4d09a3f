"""GGUF files that llama.cpp itself saves: they have values for keys that were not set."""

from dataclasses import replace
from pathlib import Path

import llama_cpp
import pytest

from inference_svc.llama import library
from inference_svc.models.metadata import ModelFile, describe_model
from tests.outside.llama_cpp.architectures import write_architecture
from tests.support.llama_engines import make_engine, open_backend, output_tokens, run_engine
from tests.support.sequences import make_request

PROMPT = [5, 6, 7, 8]


def _save(path: Path, saved: Path) -> None:
    library.start()
    params = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    llama_cpp.llama_model_save_to_file(model, str(saved).encode())
    llama_cpp.llama_model_free(model)


def _described(path: Path) -> ModelFile:
    """Without what differs between two files of one model."""
    described = describe_model(path, "m")
    return replace(described, path=Path(), paths=(), stamps=(), size_bytes=0)


def _output(path: Path) -> list[int]:
    with open_backend(path) as backend:
        request = make_request(0, PROMPT, max_tokens=8, ignore_eos=True)
        return output_tokens(run_engine(make_engine(backend), request))


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "falcon-h1"])
def test_a_saved_model_is_the_same_model(architecture: str, tmp_path: Path) -> None:
    """By its description and its tokens; -1 for the kind of pooling and for the first token of a
    decoder means unset."""
    path = write_architecture(architecture, tmp_path / "m.gguf")
    saved = tmp_path / "saved.gguf"
    _save(path, saved)

    assert _described(saved) == _described(path)
    assert _output(saved) == _output(path)
