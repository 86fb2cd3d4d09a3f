"""The wheel of llama-cpp-python: which prebuilt one is used, and how a build is described."""

import sys
from pathlib import Path

import pytest

from tools import llama_wheel

LOCK = "llama-cpp-python==0.3.36 \\\n    --hash=sha256:0\n"


def given_wheel(monkeypatch: pytest.MonkeyPatch, folder: Path, tags: str) -> Path:
    """Name a wheel with these tags, version first, in CORRAL_LLAMA_WHEEL."""
    wheel = folder / f"llama_cpp_python-{tags}.whl"
    wheel.touch()
    monkeypatch.setenv(llama_wheel.PREBUILT_VARIABLE, str(wheel))
    return wheel


@pytest.mark.parametrize("tags", ["0.3.36-py3-none-any", "0.3.36+cu124-1-py3-none-any"])
def test_a_prebuilt_wheel_that_fits_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tags: str
) -> None:
    """A local version, as builds for CUDA have, is the same version."""
    wheel = given_wheel(monkeypatch, tmp_path, tags)

    assert llama_wheel.prebuilt_wheel(LOCK, Path(sys.executable)) == wheel


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ("0.3.35-py3-none-any", "it is version 0.3.35, this Corral needs 0.3.36"),
        ("0.3.36-cp27-none-any", "it is for any, this Python runs on "),
        ("0.3.36-py3-none-win32", "it is for win32, this Python runs on "),
        ("0.3.36", "its name is not that of a wheel of llama-cpp-python"),
    ],
)
def test_a_prebuilt_wheel_that_does_not_fit_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tags: str, reason: str
) -> None:
    """Otherwise pip fails later, or installs what Corral was not tested with."""
    given_wheel(monkeypatch, tmp_path, tags)

    with pytest.raises(llama_wheel.WheelRefused, match=reason):
        llama_wheel.prebuilt_wheel(LOCK, Path(sys.executable))


def test_a_prebuilt_wheel_that_does_not_exist_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A misspelt path does not start a compilation of minutes."""
    given_wheel(monkeypatch, tmp_path, "0.3.36-py3-none-any").unlink()

    with pytest.raises(llama_wheel.WheelRefused, match="there is no such file"):
        llama_wheel.prebuilt_wheel(LOCK, Path(sys.executable))


def test_without_the_variable_no_prebuilt_wheel_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp is compiled then."""
    monkeypatch.delenv(llama_wheel.PREBUILT_VARIABLE, raising=False)

    assert llama_wheel.prebuilt_wheel(LOCK, Path(sys.executable)) is None


def test_the_installed_build_fits_this_processor() -> None:
    """It was compiled here."""
    root = llama_wheel.BUILD.parent.parent

    assert llama_wheel.lacking_features(Path(sys.executable), root) == []


def test_the_key_of_a_build_depends_on_its_arguments() -> None:
    """pip's cache would return the first build."""
    plain = llama_wheel.build_key(LOCK, "")

    assert plain == llama_wheel.build_key(LOCK, "")
    assert plain != llama_wheel.build_key(LOCK, "-DGGML_CUDA=on")
    assert plain != llama_wheel.build_key(LOCK + " ", "")


def test_the_progress_of_a_build_is_read_from_its_log(tmp_path: Path) -> None:
    """pip indents it; the time is estimated once a second file is finished."""
    log = tmp_path / "bootstrap.log"
    log.write_text("$ pip wheel\n-- Configuring\n")
    progress = llama_wheel.BuildProgress(log)

    assert progress() == ""
    log.write_text("  [1/83] /usr/bin/c++ -O3\n")
    assert progress() == "1 of 83 files"
    log.write_text("[1/83] /usr/bin/c++ -O3\nwarning: [2/3]\n[42/83] /usr/bin/c++\n")
    assert progress() == "42 of 83 files, about 0:00 left"
