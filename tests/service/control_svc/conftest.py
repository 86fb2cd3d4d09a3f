"""Fixtures for tests of the control service on both databases.

With `make test` the tests in `ON_BOTH` run on each; a test of another slice runs on one of them, by
its name, so that the queries of each slice are tried on both. `make properties` runs all on both.
"""

import asyncio
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytest_asyncio

from control_svc.app import upgrade_database
from control_svc.base.ids import IdSource
from control_svc.config import ControlSettings
from control_svc.db.engine import Database
from tests.support.control import RunningControl, SetClock
from tests.support.examples import TIMES, timeout
from tests.support.jobs import Jobs, open_test_database
from tests.support.postgres import create_database, empty, run_test_postgres
from tests.support.response_client import answer_or_call, make_small_control
from tests.support.runs import RunWorld, Worlds
from tests.support.scripted_turns import ScriptedTurns
from tests.support.statements import watch_statements

FIRST_START_S = 120
"""Timeout of tests with PostgreSQL, since the first one starts the server."""
DATABASES = ("sqlite", "postgres")
FOLDER = Path(__file__).parent
ON_BOTH = frozenset(
    FOLDER / name
    for name in (
        *("backup", "db", "event_log", "jobs", "limits", "projects", "vector_stores"),
        "test_audit.py",
    )
)
"""Where every test runs on both databases: locks, triggers or indexes differ, or `make coverage`
measures it."""
NO_PARAMETERS = SimpleNamespace(params={})


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Raise the timeout of tests with PostgreSQL, and choose the databases of tests."""
    for item in items:
        if "postgres" in item.name or "postgres_url" in getattr(item, "fixturenames", ()):
            item.add_marker(timeout(FIRST_START_S))
    left_out = set() if TIMES > 1 else doubles(items)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def doubles(items: list[pytest.Item]) -> set[pytest.Item]:
    by_test: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        database = getattr(item, "callspec", NO_PARAMETERS).params.get("database_url")
        if database in DATABASES and may_leave_out(item.path):
            by_test[item.nodeid.partition("[")[0]][database].append(item)
    return {
        item
        for name, on in by_test.items()
        if len(on) == len(DATABASES)
        for item in on[DATABASES[zlib.crc32(name.encode()) % 2]]
    }


def may_leave_out(path: Path) -> bool:
    """Whether one database suffices for a test of this file."""
    return FOLDER in path.parents and ON_BOTH.isdisjoint([path, *path.parents])


@pytest.fixture(scope="session")
def all_statements() -> Iterator[list[str]]:
    """Statements that reach rows of another project than that of their transaction."""
    with watch_statements() as found:
        yield found


@pytest.fixture(autouse=True)
def statements(all_statements: list[str]) -> Iterator[list[str]]:
    """Check that a test has run no such statement."""
    all_statements.clear()  # those of tests elsewhere, which the watch sees too
    yield all_statements
    assert all_statements == []


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL database with all tables."""
    with run_test_postgres() as server:
        url = create_database(server)
        asyncio.run(upgrade_database(ControlSettings(database_url=url)))
        yield url


@pytest.fixture
def postgres_url(postgres: str) -> str:
    """The URL of the PostgreSQL database, emptied."""
    empty(postgres)
    return postgres


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str | None:
    """The URL of an empty database of each kind; None for SQLite in the data folder."""
    return None if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
async def database(
    tmp_path: Path, database_url: str | None, clock: SetClock
) -> AsyncIterator[Database]:
    """An empty database of each kind."""
    async with open_test_database(tmp_path, database_url, clock) as database:
        yield database


@pytest.fixture
def jobs(database: Database, clock: SetClock) -> Jobs:
    return Jobs(database, IdSource(clock))


@pytest.fixture
def make_world(database: Database, clock: SetClock) -> Worlds:
    return lambda turns: RunWorld(database, turns, clock)


@pytest.fixture
def model() -> ScriptedTurns:
    """The scripted inference service, which test modules can override."""
    return ScriptedTurns(answer_or_call)


@pytest.fixture
async def running(
    tmp_path: Path, database_url: str | None, model: ScriptedTurns
) -> AsyncIterator[RunningControl]:
    """A control service on each database, with small limits."""
    async with make_small_control(tmp_path, database_url, model) as control:
        yield control


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def shared_database_url(request: pytest.FixtureRequest) -> str | None:
    """The URL of an empty database of each kind for all tests of a module."""
    if request.param == "sqlite":
        return None
    url: str = request.getfixturevalue("postgres")
    empty(url)
    return url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_control(
    tmp_path_factory: pytest.TempPathFactory, shared_database_url: str | None
) -> AsyncIterator[RunningControl]:
    """A control service on each database for all tests of a module, which run on its loop."""
    folder = tmp_path_factory.mktemp("shared")
    async with make_small_control(folder, shared_database_url, patience_s=None) as control:
        yield control
