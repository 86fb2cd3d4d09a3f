"""The tests of the control service run on both databases."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from control_svc.app import upgrade_database
from control_svc.base.ids import IdSource
from control_svc.config import ControlSettings
from control_svc.db.engine import Database
from tests.support.control import RunningControl, SetClock
from tests.support.jobs import Jobs, a_database
from tests.support.postgres import a_postgres, create_database, empty
from tests.support.response_client import a_small_control, answer_or_call
from tests.support.runs import RunWorld, Worlds
from tests.support.scripted_turns import ScriptedTurns

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
def clock() -> SetClock:
    """The database's time, which stands still unless told."""
    return SetClock()


@pytest.fixture
async def database(
    tmp_path: Path, database_url: str | None, clock: SetClock
) -> AsyncIterator[Database]:
    """An empty database of each kind."""
    async with a_database(tmp_path, database_url, clock) as opened:
        yield opened


@pytest.fixture
def jobs(database: Database, clock: SetClock) -> Jobs:
    """Jobs of a project."""
    return Jobs(database, IdSource(clock))


@pytest.fixture
def a_world(database: Database, clock: SetClock) -> Worlds:
    """Makes what works on runs, for a model."""
    return lambda turns: RunWorld(database, turns, clock)


@pytest.fixture
def model() -> ScriptedTurns:
    """What stands in for the inference service; a module may have a model of its own."""
    return ScriptedTurns(answer_or_call)


@pytest.fixture
async def running(
    tmp_path: Path, database_url: str | None, model: ScriptedTurns
) -> AsyncIterator[RunningControl]:
    """A control service on each database, with small limits."""
    async with a_small_control(tmp_path, database_url, model) as control:
        yield control
