"""Drills of all units of limits with real processes while control or its database is away."""

import asyncio
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from control_svc.app import upgrade_database
from control_svc.config import ControlSettings
from tests.support.limit_drills import (
    BUDGETS,
    CONTROL,
    GATEWAY,
    INFERENCE,
    NUM_CHATS,
    limit_drill,
)
from tests.support.postgres import Postgres, create_database, run_postgres_server
from tests.support.sdk_batches import CONTROL as CONTROL_PROCESS
from tests.support.sdk_batches import find_processes, kill_process
from tests.support.services import Corral, corral_up

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]
GRACE_S: Final = 20.0


@contextmanager
def killed(corral: Corral, folder: Path) -> Iterator[None]:
    """Control is killed, and started again by its supervisor."""
    kill_process(corral, CONTROL_PROCESS)
    yield


@contextmanager
def stopped(corral: Corral, folder: Path) -> Iterator[None]:
    pids = find_processes(corral, CONTROL_PROCESS)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def locked(corral: Corral, folder: Path) -> Iterator[None]:
    """The database answers late: something holds its lock."""
    database = sqlite3.connect(folder / "data" / "control" / "control.sqlite3", timeout=60)
    with database:
        database.execute("BEGIN EXCLUSIVE")
        yield
    database.close()


async def use_up(
    folder: Path, outage: Callable[[Corral], Any], *, is_short: bool, **control: Any
) -> None:
    """Use all limits up while control is away, beyond the time of grace unless it `is_short`."""
    inference = {**INFERENCE, "limits_grace_s": GRACE_S}
    with corral_up(
        folder, inference=inference, gateway=GATEWAY, control={**CONTROL, **control}
    ) as corral:
        async with limit_drill(corral, folder) as drill:
            with outage(corral):
                during = await drill.use_up()
                for unit in () if is_short else drill.callers.keys() - {"free"}:
                    late = await drill.callers[unit].send_until(httpx.codes.SERVICE_UNAVAILABLE)
                    assert unit not in BUDGETS or {each.status_code for each in late[:-1]} <= {429}
            sent = drill.before["requests"] + during["requests"]
            left = [int(each.headers["x-ratelimit-remaining-requests"]) for each in sent]
            assert left == [*range(NUM_CHATS - 1, -1, -1), 0]
            for unit in BUDGETS:
                again = await drill.callers[unit].send_until(200, 429)
                assert (unit, again[-1].status_code) == (unit, 429)
            await drill.wait_for_usage(during)


@pytest.mark.parametrize("outage", [killed, stopped, locked])
async def test_limits_are_used_up_exactly_while_control_is_away(
    tmp_path: Path, outage: Callable[[Corral, Path], Any]
) -> None:
    """Requests, tokens, cost and slots: one service may use all that was left; it is refused as
    exhausted when it is, and with 503 after the time of grace. Headers and usage say the same."""
    await use_up(tmp_path, lambda corral: outage(corral, tmp_path), is_short=outage is killed)


@contextmanager
def postgres_stopped(server: Postgres) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[tuple[Postgres, str]]:
    """A server, and the URL of a database without rows."""
    with run_postgres_server() as server:
        url = create_database(server.url)
        asyncio.run(upgrade_database(ControlSettings(data_dir=tmp_path, database_url=url)))
        yield server, url


async def test_limits_are_used_up_exactly_while_postgres_is_away(
    tmp_path: Path, postgres: tuple[Postgres, str]
) -> None:
    """As with SQLite."""
    server, url = postgres
    await use_up(tmp_path, lambda _: postgres_stopped(server), is_short=False, database_url=url)
