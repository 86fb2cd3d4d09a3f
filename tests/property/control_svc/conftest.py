"""Databases for Hypothesis state machines."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from control_svc.db.engine import Database
from tests.support.control import SetClock
from tests.support.examples import timeout
from tests.support.job_machine import OpenDatabase
from tests.support.jobs import open_test_database

HISTORIES_S = 120
"""Timeout of tests with histories of many transactions, which are slow on a busy machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise the timeout of tests that open a database for every example."""
    for item in items:
        if "on_sqlite" in getattr(item, "fixturenames", ()):
            item.add_marker(timeout(HISTORIES_S))


@pytest.fixture
def on_sqlite() -> OpenDatabase:
    @asynccontextmanager
    async def open_empty(clock: SetClock) -> AsyncIterator[Database]:
        with TemporaryDirectory() as folder:
            async with open_test_database(Path(folder), clock=clock) as database:
                yield database

    return open_empty
