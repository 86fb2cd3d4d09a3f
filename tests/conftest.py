"""What holds for every test: the settings of whoever runs the tests do not reach them."""

import os

import pytest


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator's CORRAL_ variables would change what a test starts."""
    for name in [name for name in os.environ if name.startswith("CORRAL_")]:
        monkeypatch.delenv(name)
