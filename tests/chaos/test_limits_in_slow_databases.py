"""A drill of all units of limits with real processes while PostgreSQL is slow: exact counts."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_svc.app import upgrade_database
from control_svc.config import ControlSettings
from tests.support.limit_drills import CONTROL, GATEWAY, INFERENCE, limit_drill
from tests.support.postgres import create_database, run_postgres_server
from tests.support.services import corral_up
from tests.support.slow_postgres import SlowPostgres, run_slow_postgres

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowPostgres]:
    """A database without rows, behind a relay."""
    with run_postgres_server() as server:
        url = create_database(server.url)
        asyncio.run(upgrade_database(ControlSettings(data_dir=tmp_path, database_url=url)))
        with run_slow_postgres(url) as relay:
            yield relay


@pytest.mark.parametrize("delay_s", [0.3, 2.0])
async def test_limits_are_used_exactly_while_postgres_is_slow(
    tmp_path: Path, slow: SlowPostgres, delay_s: float
) -> None:
    """Requests, tokens, cost and slots, with statements that take a part of a second, so that
    answers come late, and seconds, so that none comes in time."""
    control = {"database_url": slow.url, **CONTROL}
    with corral_up(tmp_path, inference=INFERENCE, gateway=GATEWAY, control=control) as corral:
        async with limit_drill(corral, tmp_path) as drill:
            slow.delay_s = delay_s
            during = await drill.use_up()
            slow.delay_s = 0
            await drill.wait_for_usage(during)
