"""Databases for Hypothesis state machines."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from control_svc.db.engine import Database, open_database
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


@pytest.fixture(scope="package")
def on_sqlite() -> Iterator[OpenDatabase]:
    """Opens copies of an empty database, since migrations take longer than an example."""

    async def create(folder: Path) -> None:
        async with open_test_database(folder):
            pass

    with tempfile.TemporaryDirectory() as template:
        asyncio.run(create(Path(template)))

        @asynccontextmanager
        async def open_copy(clock: SetClock) -> AsyncIterator[Database]:
            with tempfile.TemporaryDirectory() as folder:
                shutil.copytree(template, folder, dirs_exist_ok=True)
                async with open_database(None, Path(folder), clock) as database:
                    yield database

        yield open_copy
