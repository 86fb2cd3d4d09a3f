"""What responses go on from, asked of a model with a small window."""

import pytest

from tests.support.control import RunningControl
from tests.support.response_client import ResponseClient
from tests.support.small_window import SmallWindow


@pytest.fixture
def model() -> SmallWindow:
    """The model."""
    return SmallWindow()


@pytest.fixture
def client(running: RunningControl) -> ResponseClient:
    """A caller."""
    return ResponseClient(running.client)
