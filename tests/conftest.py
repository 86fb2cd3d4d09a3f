"""What holds for every test: the settings of whoever runs the tests do not reach them."""

import os

import hypothesis
import pytest

from tests.support.examples import examples

# How long an example takes says what else the machine does; pytest's own limit ends what hangs.
hypothesis.settings.register_profile("corral", deadline=None, max_examples=examples(100))
hypothesis.settings.load_profile("corral")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator's CORRAL_ variables would change what a test starts."""
    for name in [name for name in os.environ if name.startswith("CORRAL_")]:
        monkeypatch.delenv(name)
