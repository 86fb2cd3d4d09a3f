"""The installation neither obeys stray settings nor mistakes one build of llama.cpp for another."""

import re
from pathlib import Path

import pytest

from tools import bootstrap


def test_settings_of_the_shell_do_not_move_the_installation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where pip fetches from is kept; where and what it installs is ours."""
    stray = {"PIP_TARGET": "x", "PIP_USER": "1", "PIP_NO_BINARY": ":all:", "PYTHONPATH": "x"}
    for name, value in {**stray, "PIP_CERT": "ca.pem"}.items():
        monkeypatch.setenv(name, value)

    kept = bootstrap.environment()

    assert kept["PIP_CERT"] == "ca.pem"
    assert kept["PIP_USER"] == "0"
    assert not {"PIP_TARGET", "PIP_NO_BINARY", "PYTHONPATH"} & kept.keys()


def test_a_build_with_other_arguments_is_another_build() -> None:
    """pip's own cache would hand out the first one for ever."""
    plain = bootstrap.llama_key("llama-cpp-python==1", "")

    assert plain == bootstrap.llama_key("llama-cpp-python==1", "")
    assert plain != bootstrap.llama_key("llama-cpp-python==1", "-DGGML_CUDA=on")
    assert plain != bootstrap.llama_key("llama-cpp-python==2", "")


def test_the_level_of_a_stamp_is_part_of_it() -> None:
    """What runs the server is not enough to run its tests."""
    levels = [*bootstrap.LEVELS, bootstrap.DEMO_MODEL]

    assert len({bootstrap.fingerprint(level) for level in levels}) == len(levels)


def test_the_demo_model_is_trained_in_an_environment_of_its_own() -> None:
    """A server needs no PyTorch; its environment is neither filled nor stamped with it."""
    assert bootstrap.venv_of(bootstrap.DEMO_MODEL) != bootstrap.venv_of("bench")
    assert bootstrap.stamp_path(bootstrap.DEMO_MODEL).parent == bootstrap.DEMO_MODEL_VENV


def test_without_a_gpu_only_what_cuda_needs_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The lock is the one of the CUDA build, so a package too many is gigabytes."""
    monkeypatch.setattr(bootstrap, "DEMO_MODEL_VENV", tmp_path)

    kept = bootstrap.split_demo_model_lock().read_text()

    assert "\ntokenizers==" in kept
    assert "\nnumpy==" in kept
    assert not re.search(r"(?m)^(torch|triton|nvidia|cuda)", kept)
