"""The migrations, forward and back on both databases."""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from control_svc.app import check_database, upgrade_database
from control_svc.config import ControlSettings
from control_svc.db import migrations
from control_svc.db.engine import open_database
from control_svc.db.tables import Table
from svc_kit.lifecycle import StartupError
from tests.support.postgres import a_postgres, create_database, execute


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """A PostgreSQL without anything in it."""
    with a_postgres() as server:
        yield server


@pytest.fixture(
    params=["sqlite", pytest.param("postgres", marks=pytest.mark.timeout(120))],
)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> ControlSettings:
    """Settings that lead to an empty database of each kind."""
    url = None
    if request.param == "postgres":
        url = create_database(request.getfixturevalue("postgres"))
    return ControlSettings(data_dir=tmp_path, database_url=url)


async def go_back(settings: ControlSettings, revision: str = "base") -> list[str]:
    """Take a database back, to nothing by default; the tables that are left."""
    url = settings.database_url
    async with open_database(
        None if url is None else url.get_secret_value(), settings.data_dir / "control"
    ) as database:
        await migrations.downgrade(database.migrator, revision)
        async with database.writer.connect() as connection:
            return await connection.run_sync(lambda each: inspect(each).get_table_names())


def test_there_is_one_newest_revision() -> None:
    """Two heads are two people's work that nobody has put in order."""
    script = ScriptDirectory.from_config(migrations.configuration())

    assert script.get_heads() == [migrations.head()]


async def test_up_down_up_ends_where_it_began(settings: ControlSettings) -> None:
    """Forward makes the tables that the models say, back leaves none, and forward works again."""
    await upgrade_database(settings)
    assert await check_database(settings) == migrations.head()
    assert await go_back(settings) == ["alembic_version"]
    await upgrade_database(settings)
    assert await check_database(settings) == migrations.head()
    await upgrade_database(settings)


A_STORE = (
    "INSERT INTO vector_stores (project, id, name, description, attached, in_progress, completed,"
    " failed, cancelled, num_chunks, usage_bytes, embedding_model, dimensions, revision,"
    " created_at, active_at) VALUES ('p', 'vs_1', '', '', '{}', 0, 1, 0, 0, 1, 9, 'm', 64, 1,"
    " '2026-01-01', '2026-01-01')"
)


async def test_a_store_of_before_digests_keeps_its_vectors(settings: ControlSettings) -> None:
    """Forward, and back again: which file they are of is not known."""
    await upgrade_database(settings)
    await go_back(settings, "0012")
    await change(settings, A_STORE)
    await upgrade_database(settings)
    upgraded = await rows(settings, "SELECT embedding_model, embedding_digest FROM vector_stores")
    await go_back(settings, "0012")
    back = await rows(settings, "SELECT id, embedding_model, dimensions FROM vector_stores")

    assert upgraded == [("m", "")]
    assert back == [("vs_1", "m", 64)]


async def test_a_database_that_is_behind_or_ahead_is_told_apart(settings: ControlSettings) -> None:
    """Behind: the command that helps is named. Ahead: this release leaves it alone."""
    with pytest.raises(StartupError, match="run `corral db upgrade`"):
        await check_database(settings)
    await upgrade_database(settings)
    await change(settings, "UPDATE alembic_version SET version_num = '9999'")

    for use in (check_database, upgrade_database):
        with pytest.raises(StartupError, match="made by a later one"):
            await use(settings)


async def test_a_table_that_somebody_changed_is_found(settings: ControlSettings) -> None:
    """The revision alone does not say what is there."""
    await upgrade_database(settings)
    await change(settings, "ALTER TABLE files ADD COLUMN extra INTEGER")

    with pytest.raises(StartupError, match="not as its migrations made it"):
        await check_database(settings)


async def test_a_role_that_may_not_add_pgvector_migrates_without(
    postgres: str, tmp_path: Path
) -> None:
    """Vectors are compared in memory then; the owner of the server gets the column."""
    owner, plain = [await asyncio.to_thread(create_database, postgres) for _ in range(2)]
    name = plain.partition("@/")[2].partition("?")[0]
    await execute(plain, f"CREATE ROLE {name} LOGIN", f"ALTER DATABASE {name} OWNER TO {name}")
    await execute(plain, f"ALTER SCHEMA public OWNER TO {name}")
    urls = (owner, plain.replace("//postgres@", f"//{name}@"))
    found = []
    for url in urls:
        await upgrade_database(ControlSettings(data_dir=tmp_path, database_url=url))
        async with open_database(url, tmp_path) as database, database.writer.connect() as opened:
            row = await opened.exec_driver_sql(
                "SELECT count(*) FROM pg_attribute WHERE attname = 'embedding'"
                " AND attrelid = 'vector_chunk_index'::regclass"
            )
            found.append(row.scalar_one())

    assert found == [1, 0]


async def change(settings: ControlSettings, statement: str) -> None:
    """Do to a database what no migration does."""
    url = settings.database_url
    if url is not None:
        await execute(url.get_secret_value(), statement)
        return
    async with (
        open_database(None, settings.data_dir / "control") as database,
        database.writer.begin() as connection,
    ):
        await connection.exec_driver_sql(statement)


async def rows(settings: ControlSettings, query: str) -> list[tuple[object, ...]]:
    """What a database has."""
    url = settings.database_url
    async with (
        open_database(
            None if url is None else url.get_secret_value(), settings.data_dir / "control"
        ) as database,
        database.writer.connect() as connection,
    ):
        return [tuple(row) for row in await connection.exec_driver_sql(query)]


def test_every_table_belongs_to_a_project_or_to_the_house() -> None:
    """The project leads the key of whatever a caller without the scope admin can reach."""
    house = {"counters", "secrets", "projects", "api_keys", "usage_reports"}

    leading = {name: next(iter(t.primary_key)).name for name, t in Table.metadata.tables.items()}

    assert {name for name, column in leading.items() if column != "project"} == house


async def test_a_schema_change_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Also on SQLite, whose driver would commit each statement by itself."""
    async with open_database(None, tmp_path) as database:

        async def change_half() -> None:
            async with database.writer.begin() as connection:
                await connection.exec_driver_sql("CREATE TABLE half (id INTEGER)")
                raise StartupError("in between")

        with pytest.raises(StartupError):
            await change_half()
        async with database.writer.connect() as connection:
            assert await connection.run_sync(lambda each: inspect(each).get_table_names()) == []


REBUILD = """
from alembic import op

revision = "9999"
down_revision = "{head}"
branch_labels = depends_on = None


def upgrade():
    with op.batch_alter_table("uploads", recreate="always") as table:
        table.alter_column("mime_type", nullable=True)
    {more}
"""


@pytest.fixture
def next_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Installs, in a folder with a percent sign, one migration more: it makes "uploads" anew."""

    def install(more: str) -> None:
        folder = tmp_path / "100%" / "migrations"
        rebuild = REBUILD.format(head=migrations.head(), more=more)
        shutil.copytree(migrations.MIGRATIONS, folder)
        (folder / "versions" / "9999_rebuild.py").write_text(rebuild)
        monkeypatch.setattr(migrations, "MIGRATIONS", folder)

    return install


ROWS = (
    "INSERT INTO uploads VALUES ('p', 'u', 'a', 'user_data', 1, 'a/b', NULL, 'pending',"
    " '2026-01-01', '2026-01-01', NULL, '')",
    "INSERT INTO upload_parts VALUES ('p', 'u', 'part', 1, 'key', '2026-01-01')",
)


async def test_children_outlive_a_table_that_is_made_anew(
    tmp_path: Path, next_release: Callable[[str], None]
) -> None:
    """SQLite drops the old table; the parts would go with their uploads."""
    settings = ControlSettings(data_dir=tmp_path)
    await upgrade_database(settings)
    for row in ROWS:
        await change(settings, row)
    next_release("pass")

    await upgrade_database(settings)

    assert await parts(settings) == ["part"]


async def test_an_upgrade_that_leaves_orphans_is_undone(
    tmp_path: Path, next_release: Callable[[str], None]
) -> None:
    """Foreign keys are off meanwhile, so they are looked at before the end."""
    settings = ControlSettings(data_dir=tmp_path)
    await upgrade_database(settings)
    before = migrations.head()
    for row in ROWS:
        await change(settings, row)
    next_release('op.execute("DELETE FROM uploads")')

    with pytest.raises(StartupError, match="without their parents in upload_parts"):
        await upgrade_database(settings)

    async with open_database(None, tmp_path / "control") as database:
        assert await migrations.current(database.writer) == before


async def parts(settings: ControlSettings) -> list[str]:
    """The ids of all parts on SQLite."""
    async with (
        open_database(None, settings.data_dir / "control") as database,
        database.writer.connect() as connection,
    ):
        return list(await connection.scalars(text("SELECT id FROM upload_parts")))
