"""The random projectors and models that other tests use."""

from pathlib import Path

import pytest

from tests.support.media_models import KINDS, write_pair


@pytest.mark.parametrize("kind", KINDS)
def test_models_are_repeatable(kind: str, tmp_path: Path) -> None:
    """Two files of one kind are equal, so that tests in several processes expect the same."""
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    first, second = (write_pair(kind, folder) for folder in folders)

    assert first.model.read_bytes() == second.model.read_bytes()
    assert first.projector.read_bytes() == second.projector.read_bytes()
