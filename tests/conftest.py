"""Settings of all tests."""

import os

import hypothesis
import pytest

from tests.support.examples import examples

# No deadline, since the duration of an example depends on the load of the machine.
hypothesis.settings.register_profile("corral", deadline=None, max_examples=examples(100))
hypothesis.settings.load_profile("corral")


@pytest.fixture(autouse=True)
def _clear_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove CORRAL_ variables, which would change the settings of tested services."""
    for name in [name for name in os.environ if name.startswith("CORRAL_")]:
        monkeypatch.delenv(name)
