"""Creation of the service token before a service starts."""

from pathlib import Path

import pytest

from corral_cli.up.children import ensure_token
from svc_kit.lifecycle import StartupError
from svc_kit.settings.groups import read_secret


def test_a_new_token_is_readable_by_the_owner_only(tmp_path: Path) -> None:
    """The folder is created too; services require this mode."""
    path = tmp_path / "data" / "service-token"

    ensure_token(path)

    assert path.stat().st_mode & 0o777 == 0o600
    assert len(read_secret(path)) >= 40


def test_an_existing_token_is_kept(tmp_path: Path) -> None:
    """A running service may use it."""
    path = tmp_path / "service-token"
    ensure_token(path)
    before = path.read_text()

    ensure_token(path)

    assert path.read_text() == before


def test_an_unwritable_folder_is_reported_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StartupError, match=r"cannot write .*service-token"):
        ensure_token(tmp_path / "file" / "service-token")
