"""Before a service starts its models are readable, and its token is there for it alone."""

from pathlib import Path

import pytest

from corral_cli.up.children import check_models, ensure_token
from svc_kit.lifecycle import StartupError
from svc_kit.settings.groups import read_secret


def test_a_token_is_made_for_the_owner_alone(tmp_path: Path) -> None:
    """The folder is made too; the mode is that which services insist on."""
    path = tmp_path / "data" / "service-token"

    ensure_token(path)

    assert path.stat().st_mode & 0o777 == 0o600
    assert len(read_secret(path)) >= 40


def test_an_existing_token_is_kept(tmp_path: Path) -> None:
    """A service that already runs holds it."""
    path = tmp_path / "service-token"
    ensure_token(path)
    before = path.read_text()

    ensure_token(path)

    assert path.read_text() == before


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """The operator reads which file could not be made, and why."""
    (tmp_path / "file").write_text("")

    with pytest.raises(StartupError, match=r"cannot write .*service-token"):
        ensure_token(tmp_path / "file" / "service-token")


def test_the_bundled_model_is_fine() -> None:
    """It ships with the package."""
    check_models(["bundled", "again=bundled"])


@pytest.mark.parametrize("source", ["nowhere.gguf", "hf:owner/only", "a=bundled"])
def test_a_model_that_cannot_be_served_is_one_line(source: str) -> None:
    """A missing file, half a reference, a name given twice: nothing is started for it."""
    with pytest.raises(StartupError) as failure:
        check_models(["a=bundled", source])

    assert "\n" not in str(failure.value)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    """What is no GGUF is found by its header."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but not really")

    with pytest.raises(StartupError, match=str(broken)):
        check_models([str(broken)])


def test_a_remote_model_is_left_to_the_service() -> None:
    """Its reference is read, nothing is fetched."""
    check_models(["hf:owner/repo/file.gguf"])
