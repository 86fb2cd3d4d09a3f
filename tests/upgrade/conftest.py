"""The last release."""

from pathlib import Path

import pytest

from tests.support.release_trees import export_last_release


@pytest.fixture(scope="session")
def last_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sources of the last release."""
    folder = tmp_path_factory.mktemp("last-release")
    export_last_release(folder)
    return folder
