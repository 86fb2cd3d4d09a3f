"""The tests of the control service run on both databases."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from control_svc.app import upgrade_database
from control_svc.config import ControlSettings
from tests.support.control import RunningControl
from tests.support.postgres import a_postgres, create_database, empty
from tests.support.response_client import a_small_control

FIRST_START_S = 120
"""What the first test with PostgreSQL may take: it makes the server."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allow for the server that the first of the tests starts."""
    for item in items:
        if "postgres" in item.name or "postgres_url" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(FIRST_START_S))


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A database on PostgreSQL, with our tables; its URL."""
    with a_postgres() as server:
        url = create_database(server)
        asyncio.run(upgrade_database(ControlSettings(database_url=url)))
        yield url


@pytest.fixture
def postgres_url(postgres: str) -> str:
    """The same, empty."""
    empty(postgres)
    return postgres


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str | None:
    """An empty database of each kind, with our tables; None: SQLite in the data folder."""
    return None if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
async def running(tmp_path: Path, database_url: str | None) -> AsyncIterator[RunningControl]:
    """A control service on each database, with small limits."""
    async with a_small_control(tmp_path, database_url) as control:
        yield control
