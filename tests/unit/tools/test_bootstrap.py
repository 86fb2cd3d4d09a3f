"""The installation neither obeys stray settings nor mistakes one build of llama.cpp for another."""

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
    assert len({bootstrap.fingerprint(level) for level in bootstrap.LEVELS}) == 3
