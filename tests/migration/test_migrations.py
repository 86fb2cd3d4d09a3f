"""Upgrades and downgrades on both databases."""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory
from sqlalchemy.exc import DBAPIError

from control_svc.app import check_database, upgrade_database
from control_svc.config import ControlSettings
from control_svc.db import migrations
from control_svc.db.engine import Database, open_database
from control_svc.db.tables import Table
from svc_kit.lifecycle import StartupError
from tests.support.postgres import create_database, execute, run_test_postgres


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """An empty PostgreSQL server."""
    with run_test_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.timeout(120))])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> ControlSettings:
    """Settings of an empty database of each kind."""
    url = None
    if request.param == "postgres":
        url = create_database(request.getfixturevalue("postgres"))
    return ControlSettings(data_dir=tmp_path, database_url=url)


def open_with(settings: ControlSettings) -> AbstractAsyncContextManager[Database]:
    url = settings.database_url
    folder = settings.data_dir / "control"
    return open_database(None if url is None else url.get_secret_value(), folder)


async def downgrade(settings: ControlSettings, revision: str = "base") -> list[str]:
    """Downgrade a database, and return the names of its remaining tables."""
    async with open_with(settings) as database:
        await migrations.downgrade(database.migrator, revision)
        async with database.writer.connect() as connection:
            return await connection.run_sync(lambda sync: sa.inspect(sync).get_table_names())


async def execute_sql(settings: ControlSettings, *statements: str) -> None:
    async with open_with(settings) as database, database.writer.begin() as connection:
        for statement in statements:
            await connection.exec_driver_sql(statement)


async def query(settings: ControlSettings, sql: str) -> list[tuple[object, ...]]:
    async with open_with(settings) as database, database.writer.connect() as connection:
        return [tuple(row) for row in await connection.exec_driver_sql(sql)]


def test_there_is_one_newest_revision() -> None:
    """Branches must be merged into one order."""
    script = ScriptDirectory.from_config(migrations.configuration())

    assert script.get_heads() == [migrations.head()]


async def test_a_database_is_upgraded_downgraded_and_upgraded_again(
    settings: ControlSettings,
) -> None:
    """An upgrade creates the tables of the models, and a downgrade to "base" leaves none."""
    await upgrade_database(settings)
    assert await check_database(settings) == migrations.head()
    assert await downgrade(settings) == ["alembic_version"]
    await upgrade_database(settings)
    assert await check_database(settings) == migrations.head()
    await upgrade_database(settings)


A_STORE = (
    "INSERT INTO vector_stores (project, id, name, description, attached, in_progress, completed,"
    " failed, cancelled, num_chunks, usage_bytes, embedding_model, dimensions, revision,"
    " created_at, active_at) VALUES ('p', 'vs_1', '', '', '{}', 0, 1, 0, 0, 1, 9, 'm', 64, 1,"
    " '2026-01-01', '2026-01-01')"
)


async def test_a_vector_store_without_a_digest_keeps_its_vectors(settings: ControlSettings) -> None:
    """In the upgrade that adds the digest, and in the downgrade."""
    await upgrade_database(settings)
    await downgrade(settings, "0012")
    await execute_sql(settings, A_STORE)
    await upgrade_database(settings)
    upgraded = await query(settings, "SELECT embedding_model, embedding_digest FROM vector_stores")
    await downgrade(settings, "0012")
    back = await query(settings, "SELECT id, embedding_model, dimensions FROM vector_stores")

    assert upgraded == [("m", "")]
    assert back == [("vs_1", "m", 64)]


async def test_usage_without_a_key_is_kept(settings: ControlSettings) -> None:
    """In the upgrade that adds keys and cost, and the usage of all keys in the downgrade."""
    counts = "INSERT INTO usage (project, {}model, hour, day, requests, prompt_tokens,"
    counts += " cached_tokens, completion_tokens) VALUES ('p', {}'m', '2026-01-01', '2026-01-01',"
    counts += " 1, 20, 3, 4)"
    await upgrade_database(settings)
    await downgrade(settings, "0015")
    await execute_sql(settings, counts.format("", ""))
    await upgrade_database(settings)
    upgraded = await query(settings, "SELECT key, model, prompt_tokens, cost_nanos FROM usage")
    await execute_sql(settings, counts.format("key, ", "'key_1', "))
    await downgrade(settings, "0015")
    back = await query(settings, "SELECT model, requests, prompt_tokens FROM usage")

    assert upgraded == [("", "m", 20, 0)]
    assert back == [("m", 2, 40)]


async def test_databases_of_other_releases_are_refused(settings: ControlSettings) -> None:
    """An older one with the command to run; a newer one is left unchanged."""
    with pytest.raises(StartupError, match="run `corral db upgrade`"):
        await check_database(settings)
    await upgrade_database(settings)
    await execute_sql(settings, "UPDATE alembic_version SET version_num = '9999'")

    for function in (check_database, upgrade_database):
        with pytest.raises(StartupError, match="made by a later one"):
            await function(settings)


async def test_a_changed_table_is_detected(settings: ControlSettings) -> None:
    """Even if the revision is right."""
    await upgrade_database(settings)
    await execute_sql(settings, "ALTER TABLE files ADD COLUMN extra INTEGER")

    with pytest.raises(StartupError, match="differ from those of the migrations"):
        await check_database(settings)


async def test_a_role_without_the_right_to_add_pgvector_can_upgrade(
    postgres: str, tmp_path: Path
) -> None:
    """The vector column is missing then, and vectors are compared in memory."""
    owner, plain = [await asyncio.to_thread(create_database, postgres) for _ in range(2)]
    name = plain.partition("@/")[2].partition("?")[0]
    await execute(plain, f"CREATE ROLE {name} LOGIN", f"ALTER DATABASE {name} OWNER TO {name}")
    await execute(plain, f"ALTER SCHEMA public OWNER TO {name}")
    num_columns = []
    for url in (owner, plain.replace("//postgres@", f"//{name}@")):
        settings = ControlSettings(data_dir=tmp_path, database_url=url)
        await upgrade_database(settings)
        num_columns += await query(
            settings,
            "SELECT count(*) FROM pg_attribute WHERE attname = 'embedding'"
            " AND attrelid = 'vector_chunk_index'::regclass",
        )

    assert num_columns == [(1,), (0,)]


def test_tables_are_keyed_by_project_unless_they_are_global() -> None:
    """The primary key of every table that callers without scope admin can reach starts with the
    project.
    """
    global_tables = {"counters", "secrets", "projects", "api_keys", "usage_reports"}
    global_tables |= {"document_conversions", "limits", "limit_buckets", "limit_shares"}
    global_tables |= {"audit_events", "adapter_frontends"}

    leading = {name: next(iter(t.primary_key)).name for name, t in Table.metadata.tables.items()}

    assert {name for name, column in leading.items() if column != "project"} == global_tables


async def test_a_failed_schema_change_is_rolled_back(tmp_path: Path) -> None:
    """Even on SQLite, whose driver would commit each statement."""
    async with open_database(None, tmp_path) as database:

        async def fail_halfway() -> None:
            async with database.writer.begin() as connection:
                await connection.exec_driver_sql("CREATE TABLE half (id INTEGER)")
                raise StartupError("failed")

        with pytest.raises(StartupError):
            await fail_halfway()
        async with database.writer.connect() as connection:
            assert await connection.run_sync(lambda sync: sa.inspect(sync).get_table_names()) == []


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


def next_release(tmp_path: Path, more: str) -> Path:
    """Create a migrations folder, with a percent sign, whose last migration recreates "uploads"."""
    folder = tmp_path / "100%" / "migrations"
    rebuild = REBUILD.format(head=migrations.head(), more=more)
    shutil.copytree(migrations.MIGRATIONS, folder)
    (folder / "versions" / "9999_rebuild.py").write_text(rebuild)
    return folder


ROWS = (
    "INSERT INTO uploads VALUES ('p', 'u', 'a', 'user_data', 1, 'a/b', NULL, 'pending',"
    " '2026-01-01', '2026-01-01', NULL, '')",
    "INSERT INTO upload_parts VALUES ('p', 'u', 'part', 1, 'key', '2026-01-01')",
)


async def test_recreating_a_table_keeps_the_rows_that_reference_it(tmp_path: Path) -> None:
    """SQLite drops the old table, but foreign keys do not delete the parts."""
    settings = ControlSettings(data_dir=tmp_path)
    await upgrade_database(settings)
    await execute_sql(settings, *ROWS)
    async with open_with(settings) as database:
        await migrations.upgrade(database.migrator, next_release(tmp_path, "pass"))

    assert await query(settings, "SELECT id FROM upload_parts") == [("part",)]


async def test_an_upgrade_that_breaks_foreign_keys_is_rolled_back(tmp_path: Path) -> None:
    """Foreign keys are off during an upgrade, so they are checked at its end."""
    settings = ControlSettings(data_dir=tmp_path)
    await upgrade_database(settings)
    await execute_sql(settings, *ROWS)
    folder = next_release(tmp_path, 'op.execute("DELETE FROM uploads")')
    async with open_with(settings) as database:
        with pytest.raises(StartupError, match="with missing parents in upload_parts"):
            await migrations.upgrade(database.migrator, folder)
        assert await migrations.current(database.writer) == migrations.head()


async def test_a_downgrade_revokes_keys_that_the_previous_release_would_extend(
    settings: ControlSettings,
) -> None:
    """It knows neither restrictions nor the narrow scopes."""
    await upgrade_database(settings)
    project = "INSERT INTO projects (id, display_name, created_at) VALUES ('p', 'p', '%s')"
    key = (
        "INSERT INTO api_keys (id, project, name, scopes, priority, prefix, sha256, created_at,"
        " models, networks) VALUES ('%s', 'p', 'k', '%s', 'NORMAL', 'sk', '%s', '%s', '%s', '%s')"
    )
    now = "2026-01-01 00:00:00"
    keys = {
        "key_a": ("inference", "", ""),
        "key_b": ("admin", "", "10.0.0.0/8"),
        "key_c": ("generate", "m", ""),
        "key_d": ("read", "", ""),
    }
    inserts = [key % (name, k[0], name, now, k[1], k[2]) for name, k in keys.items()]
    await execute_sql(settings, project % now, *inserts)
    await downgrade(settings, "0016")
    rows = await query(settings, "SELECT id, scopes, revoked_at FROM api_keys ORDER BY id")

    assert [(name, scopes, at is not None) for name, scopes, at in rows] == [
        ("key_a", "inference", False),
        ("key_b", "admin", True),
        ("key_c", "inference", True),
        ("key_d", "inference", True),
    ]


@pytest.mark.parametrize(
    "change", ["UPDATE audit_events SET actor = 'nobody'", "DELETE FROM audit_events"]
)
async def test_the_database_refuses_to_change_the_audit_log(
    settings: ControlSettings, change: str
) -> None:
    """From any connection; new events can be added."""
    await upgrade_database(settings)
    event = (
        "INSERT INTO audit_events (id, time, actor, project, method, target, request, address,"
        " request_id) VALUES ('audit_%s', '2026-01-01 00:00:00', 'service', 'default',"
        " 'KeyService/CreateKey', 'key_1', '{}', '', 'req_1')"
    )
    await execute_sql(settings, event % 1)
    with pytest.raises(DBAPIError, match="audit_events cannot be changed or deleted"):
        await execute_sql(settings, change)
    await execute_sql(settings, event % 2)
    actors = await query(settings, "SELECT actor FROM audit_events")

    assert actors == [("service",), ("service",)]
