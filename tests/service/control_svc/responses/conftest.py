"""Fixtures of the tests of responses."""

import pytest

from tests.support.control import RunningControl
from tests.support.response_client import ResponseClient
from tests.support.small_window import SmallWindow


@pytest.fixture
def model() -> SmallWindow:
    return SmallWindow()


@pytest.fixture
def client(running: RunningControl) -> ResponseClient:
    return ResponseClient(running.client)
