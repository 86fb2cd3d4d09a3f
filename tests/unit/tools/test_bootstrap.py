"""Environment, cache keys and stamps of the installation."""

import re
from pathlib import Path

import pytest

from tools import bootstrap


def test_pip_settings_of_the_shell_are_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Except those of pip's sources."""
    stray = {"PIP_TARGET": "x", "PIP_USER": "1", "PIP_NO_BINARY": ":all:", "PYTHONPATH": "x"}
    for name, value in {**stray, "PIP_CERT": "ca.pem"}.items():
        monkeypatch.setenv(name, value)

    environment = bootstrap.environment()

    assert environment["PIP_CERT"] == "ca.pem"
    assert environment["PIP_USER"] == "0"
    assert not {"PIP_TARGET", "PIP_NO_BINARY", "PYTHONPATH"} & environment.keys()


def test_stamps_of_levels_differ() -> None:
    """A larger level has more packages."""
    levels = [*bootstrap.LEVELS, bootstrap.DEMO_MODEL]

    assert len({bootstrap.fingerprint(level) for level in levels}) == len(levels)


def test_the_demo_model_has_a_separate_environment() -> None:
    """A server does not need PyTorch."""
    assert bootstrap.venv_for(bootstrap.DEMO_MODEL) != bootstrap.venv_for("bench")
    assert bootstrap.stamp_path(bootstrap.DEMO_MODEL).parent == bootstrap.DEMO_MODEL_VENV


def test_the_lock_without_cuda_has_all_other_packages(tmp_path: Path) -> None:
    """Each package for CUDA is large."""
    lock = bootstrap.split_demo_model_lock(tmp_path).read_text()

    assert "\ntokenizers==" in lock
    assert "\nnumpy==" in lock
    assert not re.search(r"(?m)^(torch|triton|nvidia|cuda)", lock)
