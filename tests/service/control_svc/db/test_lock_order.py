"""Transactions that change the same rows lock them in one order: none is a victim of a deadlock."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from control_svc.adapters.model import Adapter, AdapterReport, Frontend, ReportedState
from control_svc.adapters.queries import AdapterQueries, AdapterSyncQueries
from control_svc.db.engine import Database
from control_svc.db.transaction import CrossProjectTransaction
from control_svc.limits.model import Holding, Limit, Period, Unit
from control_svc.limits.queries import LimitQueries, ShareQueries
from model_files.adapter_facts import AdapterFacts
from tests.support.jobs import open_test_database
from tests.support.postgres import fetch_value

NOW = datetime(2026, 1, 1, tzinfo=UTC)
Work = Callable[[CrossProjectTransaction], Awaitable[None]]
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


@pytest.fixture
async def database(tmp_path: Path, postgres_url: str) -> AsyncIterator[Database]:
    """PostgreSQL, which has locks of rows."""
    async with open_test_database(tmp_path, postgres_url) as database:
        yield database


async def count_attempts(database: Database, url: str, begin: Work, end: Work, other: Work) -> int:
    """Run `begin` and `end` in one transaction and `other` in a second one, which starts between
    them and waits for the first. Returns how often both began: 2, or more after a deadlock."""
    attempts = 0
    has_begun = asyncio.Event()

    async def first(tx: CrossProjectTransaction) -> None:
        nonlocal attempts
        attempts += 1
        await begin(tx)
        has_begun.set()
        while not await fetch_value(url, WAITING):
            pass
        await end(tx)

    async def second(tx: CrossProjectTransaction) -> None:
        nonlocal attempts
        attempts += 1
        await other(tx)

    async with asyncio.TaskGroup() as group:
        group.create_task(database.across_projects.write(first))
        await has_begun.wait()
        group.create_task(database.across_projects.write(second))
    return attempts


async def test_a_limit_is_deleted_beside_a_grant(database: Database, postgres_url: str) -> None:
    limit = Limit(id="l", unit=Unit.REQUESTS, amount=9, period=Period.DAY, created_at=NOW)
    holding = Holding(1, 0, 1, NOW + timedelta(minutes=1))

    async def add(tx: CrossProjectTransaction) -> None:
        await LimitQueries(tx).add(limit)
        await ShareQueries(tx).lock(limit, "b")
        await ShareQueries(tx).save_holding(limit, "b", "h", holding, is_new=True)

    async def lock(tx: CrossProjectTransaction) -> None:
        await ShareQueries(tx).lock(limit, "b")

    async def save(tx: CrossProjectTransaction) -> None:
        await ShareQueries(tx).save_holding(limit, "b", "h", holding, is_new=False)

    async def delete(tx: CrossProjectTransaction) -> None:
        await LimitQueries(tx).delete(limit.id)

    await database.across_projects.write(add)

    assert await count_attempts(database, postgres_url, lock, save, delete) == 2


async def test_an_adapter_is_deleted_beside_a_report(database: Database, postgres_url: str) -> None:
    adapter = Adapter(
        id="adapter_" + "0" * 32,
        name="a",
        model="",
        description="",
        default_scale=1.0,
        standing_scale=0.0,
        sha256="a",
        blob_key="a",
        file_bytes=1,
        facts=AdapterFacts(architecture="", base_model="", rank=1, size_bytes=1, title=""),
        created_at=NOW,
        updated_at=NOW,
    )
    frontend = Frontend(frontend="f", address="a", revision=0, reported_at=NOW)
    report = AdapterReport(
        adapter_id=adapter.id,
        project="p",
        frontend="f",
        address="a",
        model="",
        reason="",
        problem="",
        sha256="a",
        state=ReportedState.READY,
        reported_at=NOW,
    )

    async def replace(tx: CrossProjectTransaction) -> None:
        await AdapterSyncQueries(tx).replace_reports(frontend, [report])

    async def add(tx: CrossProjectTransaction) -> None:
        await AdapterQueries(tx.of("p")).add(adapter)
        await replace(tx)

    async def lock(tx: CrossProjectTransaction) -> None:
        await AdapterQueries(tx.of("p")).lock(adapter.id)

    async def delete(tx: CrossProjectTransaction) -> None:
        await AdapterQueries(tx.of("p")).delete(adapter.id)

    await database.across_projects.write(add)

    assert await count_attempts(database, postgres_url, lock, delete, replace) == 2
