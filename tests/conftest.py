"""Settings of all tests."""

import os
from collections.abc import Callable
from functools import cache

import hypothesis
import pytest

from tests.support.examples import examples
from tests.support.media_models import MediaPair, write_pair
from tests.support.processes import LIMIT_S

# No deadline, since the duration of an example depends on the load of the machine.
hypothesis.settings.register_profile("corral", deadline=None, max_examples=examples(100))
hypothesis.settings.load_profile("corral")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests with real processes the time that these need on a busy machine."""
    for item in items:
        if item.get_closest_marker("e2e") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LIMIT_S))


@pytest.fixture(autouse=True)
def _clear_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove CORRAL_ variables, which would change the settings of tested services."""
    for name in [name for name in os.environ if name.startswith("CORRAL_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def media_pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], MediaPair]:
    """Writes a text model and its projector, each kind once in a session."""
    return cache(lambda kind: write_pair(kind, tmp_path_factory.mktemp(kind)))
