"""Start, probes, drain."""

import asyncio
from typing import Any

import httpx
import orjson
import pytest

from gateway.app import running
from gateway.config import GatewaySettings
from gateway.fake_inference import FakeInference, Script
from svc_kit.lifecycle import StartupError
from tests.support.loopback_gateway import LOOPBACK, Loopback, a_gateway, a_gateway_until
from tests.support.raw_http import a_connection, a_post

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


async def test_a_taken_port_is_one_clear_line() -> None:
    """The second gateway on a port does not start and says why."""
    async with a_gateway() as gateway:
        settings = GatewaySettings(listen=str(gateway.address), management_listen=None)
        with pytest.raises(StartupError, match="the port is already in use"):
            async with running(settings):
                pass


async def test_health_answers_without_the_service() -> None:
    """Liveness is the process's own; readiness is not."""
    settings = GatewaySettings(
        listen=LOOPBACK, management_listen=None, inference_target="127.0.0.1:1"
    )
    async with (
        running(settings) as endpoints,
        httpx.AsyncClient(base_url=f"http://{endpoints.http}", trust_env=False) as client,
    ):
        health, ready = await client.get("/health"), await client.get("/ready")
        chat = await client.post(CHAT, json=BODY)

    assert (health.status_code, health.json()) == (200, {"status": "ok"})
    for refused in (ready, chat):
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "upstream_unavailable"
        assert refused.headers["retry-after"] == "1"


async def test_readiness_follows_the_service() -> None:
    """Ready while the service says SERVING, not ready while it does not."""
    async with a_gateway() as gateway, gateway.client() as client:
        first = await client.get("/ready")
        gateway.inference.set_serving(False)
        second = await client.get("/ready")

    assert (first.status_code, second.status_code) == (200, 503)
    assert first.json() == {"status": "ready"}


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_probes_may_ask_for_the_head_alone(path: str) -> None:
    """Load balancers send HEAD."""
    async with a_gateway() as gateway, gateway.client() as client:
        answer = await client.head(path)

    assert (answer.status_code, answer.content) == (200, b"")


async def test_a_drain_lets_running_streams_finish() -> None:
    """What runs gets its end; meanwhile connections are refused and the probe says so."""
    fake, stop, gate = FakeInference(), asyncio.Event(), asyncio.Event()
    fake.script = Script(gate=gate, gate_at=1)
    async with (
        a_gateway_until(stop, fake, management_listen=LOOPBACK) as gateway,
        a_connection(gateway.address) as connection,
        httpx.AsyncClient(base_url=f"http://{gateway.management}", trust_env=False) as prober,
    ):
        await connection.send(a_post(CHAT, BODY | {"stream": True}))
        await connection.head()
        stop.set()
        await until_refused(gateway)
        probe = await prober.get("/readyz")
        gate.set()
        events = await connection.chunks()

    assert probe.status_code == 503
    assert events[-1] == b"data: [DONE]\n\n"


async def until_refused(gateway: Loopback) -> None:
    """Returns when the gateway takes no connections any more."""
    while True:
        try:
            async with a_connection(gateway.address):
                pass
        except ConnectionError:
            return


async def test_what_outlives_the_grace_ends_with_an_error() -> None:
    """A stream that runs on is told why it ends, and its call is cancelled."""
    fake, stop = FakeInference(), asyncio.Event()
    fake.script = Script(gate=asyncio.Event(), gate_at=1)
    async with (
        a_gateway_until(stop, fake, drain_grace_s=0.05) as gateway,
        a_connection(gateway.address) as connection,
    ):
        await connection.send(a_post(CHAT, BODY | {"stream": True}))
        await connection.head()
        stop.set()
        events = await connection.chunks()
        await fake.calls.ended.wait()

    error = orjson.loads(events[-1].removeprefix(b"data: "))["error"]
    assert error["code"] == "draining"
    assert fake.calls.num_cancelled == 1


async def test_a_whole_answer_that_outlives_the_grace_is_a_503() -> None:
    """A client that waits for the whole answer is told to come back."""
    fake, stop = FakeInference(), asyncio.Event()
    fake.script = Script(gate=asyncio.Event(), gate_at=1)
    async with (
        a_gateway_until(stop, fake, drain_grace_s=0.05) as gateway,
        a_connection(gateway.address) as connection,
    ):
        await connection.send(a_post(CHAT, BODY))
        await fake.calls.arrived.wait()
        stop.set()
        status, headers = await connection.head()

    assert status == 503
    assert headers["retry-after"] == "1"


async def test_a_call_has_a_deadline() -> None:
    """A generation that takes too long ends with 504, or with an error event."""
    fake = FakeInference()
    fake.script = Script(gate=asyncio.Event(), gate_at=1)
    async with a_gateway(fake, request_timeout_s=0.2) as gateway, gateway.client() as client:
        whole = await client.post(CHAT, json=BODY)
        stream = await client.post(CHAT, json=BODY | {"stream": True})

    assert whole.status_code == 504
    last = orjson.loads(stream.text.strip().split("data: ")[-1])
    assert last["error"]["code"] == "deadline_expired"


async def test_metrics_count_requests_by_route() -> None:
    """The management listener shows requests by route and status, never by path."""
    async with (
        a_gateway(management_listen=LOOPBACK) as gateway,
        gateway.client() as client,
        httpx.AsyncClient(base_url=f"http://{gateway.management}", trust_env=False) as scraper,
    ):
        await client.get("/v1/models/org/other:1b")
        await client.get("/nothing/secret")
        text = (await scraper.get("/metrics")).text
        ready = await scraper.get("/readyz")

    assert 'method="GET",route="/v1/models/{model:path}",status="200"' in text
    assert 'route="unmatched",status="404"' in text
    assert "secret" not in text
    assert "corral_http_server_sent_bytes_total" in text
    assert ready.status_code == 200
