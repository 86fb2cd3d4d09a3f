"""SIGHUP makes a running Corral read its settings again."""

import signal
import socket
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from svc_kit.rpc.client import open_channel
from tests.support.control import write_service_token
from tests.support.model_kinds import write_model_of_kind
from tests.support.operators import Operator, make_usage_delta
from tests.support.services import MODEL, Corral, corral_up, start

pytestmark = pytest.mark.e2e

BEFORE = """
[gateway]
[inference]
models = ["bundled"]
[control]
"""
AFTER = """
[gateway]
log_level = "debug"
allowed_hosts = ["corral.example"]
max_requests = 7
[inference]
models = ["bundled", "second=MODEL"]
[control]
prices = { "*" = { prompt = 1, completion = 2 } }
"""


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket at which systemd hears of the states of a unit."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield manager


def test_changed_settings_take_effect_without_a_restart(
    tmp_path: Path, systemd: socket.socket
) -> None:
    """Hosts, prices, the level of the log and the list of models; what cannot change is named, and
    a mistake in the settings of one service changes none. systemd hears that all services together
    are ready and stop, and nothing of one of them."""
    model = write_model_of_kind("window", tmp_path / "second.gguf")
    config = tmp_path / "corral.toml"
    config.write_text(BEFORE)
    with corral_up(tmp_path, "--config", config) as corral:
        before = (status(corral, "corral.example"), models(corral))
        config.write_text(AFTER.replace("MODEL", str(model)))
        reload(corral)
        corral.program.wait_for_line(r"start only: max_requests")
        corral.program.wait_for_line(r"changed: models")
        corral.program.wait_for_line(r"changed: prices")
        after = (status(corral, "corral.example"), models(corral))
        config.write_text(BEFORE.replace("[gateway]", "[gateway]\nnothing = 1"))
        reload(corral)
        corral.program.wait_for_line(r"not reloaded by any service: .*\[gateway\] nothing")
        config.write_text(BEFORE.replace("bundled", "/nowhere.gguf"))
        reload(corral)
        corral.program.wait_for_line(r"not reloaded by any service: .*models .*no such file")
        refused = (status(corral, "corral.example"), models(corral))
        so_far = corral.program.bookmark()
        config.write_text(BEFORE)
        reload(corral)
        corral.program.wait_for_line(r"changed: log_level, allowed_hosts", after=so_far)
        corral.program.wait_for_line(r"model second is not in the settings any more", after=so_far)
        at_last = (status(corral, "corral.example"), models(corral))

    assert [systemd.recv(64) for _ in range(2)] == [b"READY=1", b"STOPPING=1"]
    assert before == (403, {MODEL})
    assert after == (200, {MODEL, "second"})
    assert refused == after
    assert at_last == (403, {MODEL})


async def test_usage_costs_the_price_of_its_time(tmp_path: Path) -> None:
    """What is reported after a reload costs the new price; what was reported before, the old."""
    config, token = tmp_path / "corral.toml", write_service_token(tmp_path)
    prices = '[control]\nprices = { "*" = { prompt = %d, completion = 1 } }\n'
    config.write_text(prices % 2)
    settings = {"listen": "127.0.0.1:0", "service_token_file": str(token)}
    with start(tmp_path, "serve", "control", "--config", config, control=settings) as program:
        target = program.wait_for_line(r"serving gRPC on (\S+)")[1]
        async with open_channel(target, token=token.read_text().strip()) as channel:
            operator = Operator(channel)
            await report(operator)
            before = await cost(operator)
            config.write_text(prices % 5)
            program.signal(signal.SIGHUP)
            program.wait_for_line(r"changed: prices")
            await report(operator)
            after = await cost(operator)

    # In billionths, of 10 prompt tokens and 1 generated one, priced by the million.
    assert before == (10 * 2 + 1) * 1000
    assert after - before == (10 * 5 + 1) * 1000


async def report(operator: Operator) -> None:
    await operator.report(uuid.uuid4().hex, make_usage_delta(datetime.now(UTC), (1, 10, 0, 1)))


async def cost(operator: Operator) -> int:
    return sum(each.cost_nanos for each in (await operator.list_usage()).sums)


def reload(corral: Corral) -> None:
    """Send the signal to the supervisor."""
    corral.program.signal(signal.SIGHUP)


def status(corral: Corral, host: str) -> int:
    url = f"{corral.url}/v1/models"
    return httpx.get(url, headers={"host": host}, trust_env=False, timeout=30).status_code


def models(corral: Corral) -> set[str]:
    listed = httpx.get(f"{corral.url}/v1/models", trust_env=False, timeout=30).json()
    return {each["id"] for each in listed["data"]}
