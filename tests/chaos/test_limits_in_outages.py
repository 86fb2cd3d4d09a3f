"""Drills of budgets with real processes while control or its database is away: exact counts."""

import asyncio
import contextlib
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from corral.control.v1 import limit_service_pb2 as pb

from control_svc.app import upgrade_database
from control_svc.config import ControlSettings
from svc_kit.errors import DomainError
from svc_kit.rpc.client import open_channel
from tests.support.operators import Operator
from tests.support.postgres import Postgres, create_database, run_postgres_server
from tests.support.rpc import CAPITAL
from tests.support.sdk_batches import CONTROL, find_processes, kill_process
from tests.support.services import MODEL, Corral, corral_up

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]
AMOUNT: Final = 25
NUM_BEFORE: Final = 4
GRACE_S: Final = 12.0
SETTINGS: Final[dict[str, Any]] = {
    "usage_interval_s": 0.5,
    "limits_grace_s": GRACE_S,
    "engine.threads": 1,
}


@contextmanager
def killed(corral: Corral, folder: Path) -> Iterator[None]:
    """Control is killed, and started again by its supervisor."""
    kill_process(corral, CONTROL)
    yield


@contextmanager
def stopped(corral: Corral, folder: Path) -> Iterator[None]:
    """Control hangs."""
    pids = find_processes(corral, CONTROL)
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


class Client:
    """Sends chats, and counts those that were served."""

    def __init__(self, corral: Corral, http: httpx.AsyncClient) -> None:
        self._url = f"{corral.url}/v1/chat/completions"
        self._http = http
        self.served = 0

    async def send(self) -> httpx.Response:
        """Send a chat."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": CAPITAL}], "max_tokens": 1}
        answer = await self._http.post(self._url, json=body)
        self.served += answer.status_code == httpx.codes.OK
        return answer

    async def send_until(self, is_last: Callable[[httpx.Response], bool]) -> list[httpx.Response]:
        """Send chats until one is answered so."""
        answers = [await self.send()]
        async with asyncio.timeout(60):
            while not is_last(answers[-1]):
                answers.append(await self.send())
        return answers


async def wait_for_limit(folder: Path) -> None:
    """Wait until the inference service has noticed the limit, which it keeps in a file."""
    async with asyncio.timeout(60):
        known = b""
        while b"small" not in known:
            await asyncio.sleep(0.1)
            with contextlib.suppress(FileNotFoundError):
                known = (folder / "data" / "limits").read_bytes()


async def drill(corral: Corral, folder: Path, outage: Callable[[], Any], *, is_short: bool) -> None:
    """Use a budget up while control is away."""
    token = (folder / "data" / "service-token").read_text().strip()
    async with (
        open_channel(corral.control, token=token) as channel,
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
    ):
        operator, client = Operator(channel), Client(corral, http)
        await operator.create_limit("small", "REQUESTS", AMOUNT, "DAY")
        await wait_for_limit(folder)
        before = [await client.send() for _ in range(NUM_BEFORE)]
        with outage():
            during = await client.send_until(lambda answer: answer.status_code != httpx.codes.OK)
            if not is_short:
                late = await client.send_until(
                    lambda answer: answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
                )
                assert {each.status_code for each in late[:-1]} <= {429}
        left = [int(each.headers["x-ratelimit-remaining-requests"]) for each in before + during]
        assert [each.status_code for each in during[:-1]] == [200] * (len(during) - 1)
        assert left == [*range(AMOUNT - 1, -1, -1), 0]
        assert client.served == AMOUNT
        refused = during[-1]
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
        again = await client.send_until(lambda answer: answer.status_code != 503)
        assert again[-1].status_code == 429
        async with asyncio.timeout(60):
            bucket = pb.LimitBucket()
            while bucket.used != client.served or bucket.held:
                with contextlib.suppress(DomainError):  # the channel may not be connected again
                    (bucket,) = (await operator.limit_buckets("small")).buckets
                await asyncio.sleep(0.2)
        assert bucket.remaining == 0


@pytest.mark.parametrize("outage", [killed, stopped, locked])
async def test_a_budget_is_used_up_exactly_while_control_is_away(
    tmp_path: Path, outage: Callable[[Corral, Path], Any]
) -> None:
    """One service may use all that was left; it is refused as exhausted when it is, and with 503
    after the time of grace. Headers and usage say the same."""
    with corral_up(tmp_path, inference=SETTINGS) as corral:
        away = outage is not killed
        await drill(corral, tmp_path, lambda: outage(corral, tmp_path), is_short=not away)


@contextmanager
def postgres_stopped(server: Postgres) -> Iterator[None]:
    """The database server is away."""
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


async def test_a_budget_is_used_up_exactly_while_postgres_is_away(
    tmp_path: Path, postgres: tuple[Postgres, str]
) -> None:
    """As with SQLite."""
    server, url = postgres
    with corral_up(tmp_path, inference=SETTINGS, control={"database_url": url}) as corral:
        await drill(corral, tmp_path, lambda: postgres_stopped(server), is_short=False)
