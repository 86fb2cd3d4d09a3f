"""Startup, probes, deadlines, drain and metrics."""

import asyncio
from typing import Any

import orjson
import pytest
from httpx import AsyncClient

from gateway.app import running
from gateway.config import GatewaySettings
from svc_kit.lifecycle import StartupError
from tests.support.fake_inference import FakeInference, Script
from tests.support.loopback_gateway import (
    LOOPBACK,
    Loopback,
    run_gateway,
    run_gateway_until,
    run_inference_service,
)
from tests.support.raw_http import open_connection

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


async def test_a_port_in_use_raises_startup_error() -> None:
    """With a clear message."""
    async with run_gateway() as gateway:
        settings = GatewaySettings(listen=str(gateway.address), management_listen=None)
        with pytest.raises(StartupError, match="the port is already in use"):
            async with running(settings):
                pass


@pytest.mark.parametrize("target", ["127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2"])
async def test_health_does_not_depend_on_the_service(target: str) -> None:
    """Readiness does, also if all replicas are gone."""
    settings = GatewaySettings(listen=LOOPBACK, management_listen=None, inference_target=target)
    async with (
        running(settings) as endpoints,
        AsyncClient(base_url=f"http://{endpoints.http}", trust_env=False) as client,
    ):
        health, ready = await client.get("/health"), await client.get("/ready")
        chat = await client.post(CHAT, json=BODY)

    assert (health.status_code, health.json()) == (200, {"status": "ok"})
    for refused in (ready, chat):
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "upstream_unavailable"
        assert refused.headers["retry-after"] == "1"


async def test_readiness_follows_the_service(client: AsyncClient, gateway: Loopback) -> None:
    """Ready only while the service is SERVING."""
    first = await client.get("/ready")
    gateway.inference.set_serving(False)
    second = await client.get("/ready")

    assert (first.status_code, second.status_code) == (200, 503)
    assert first.json() == {"status": "ready"}


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_probes_support_head(client: AsyncClient, path: str) -> None:
    """As load balancers use it."""
    answer = await client.head(path)

    assert (answer.status_code, answer.content) == (200, b"")


async def test_a_gateway_is_ready_once_it_has_reached_both_services() -> None:
    """From then on one suffices, since each serves a part of the requests."""
    async with (
        run_inference_service(FakeInference()) as control,
        run_gateway(management_listen=LOOPBACK, control_target=str(control.address)) as gateway,
    ):

        async def probe(*, inference: bool, control_serves: bool) -> int:
            gateway.inference.set_serving(inference)
            control.set_serving(control_serves)
            return await probe_readiness(gateway)

        assert [
            await probe(inference=False, control_serves=False),
            await probe(inference=True, control_serves=False),
            await probe(inference=True, control_serves=True),
            await probe(inference=True, control_serves=False),
            await probe(inference=False, control_serves=True),
            await probe(inference=False, control_serves=False),
            await probe(inference=True, control_serves=False),
        ] == [503, 503, 200, 200, 200, 503, 200]


async def test_a_gateway_is_not_ready_if_a_service_is_unreachable() -> None:
    """As with a wrong address in its settings."""
    async with run_gateway(management_listen=LOOPBACK, control_target="127.0.0.1:1") as gateway:
        assert await probe_readiness(gateway) == 503


async def probe_readiness(gateway: Loopback) -> int:
    url = f"http://{gateway.management}"
    async with AsyncClient(base_url=url, trust_env=False) as prober:
        return (await prober.get("/readyz")).status_code


async def test_a_drain_lets_running_streams_finish() -> None:
    """New requests get 503, also on new connections, and the probes fail."""
    fake, stop, gate = FakeInference(), asyncio.Event(), asyncio.Event()
    fake.script = Script(gate=gate, gate_at=1)
    async with (
        run_inference_service(FakeInference()) as control,
        run_gateway_until(
            stop, fake, management_listen=LOOPBACK, control_target=str(control.address)
        ) as gateway,
        gateway.client() as client,
        open_connection(gateway.address) as connection,
    ):
        await connection.request(CHAT, BODY | {"stream": True})
        before = await probe_readiness(gateway)
        stop.set()
        while (await client.post(CHAT, json=BODY)).status_code == 200:
            pass
        async with gateway.client() as late:
            refused = await late.post(CHAT, json=BODY)
        draining = await probe_readiness(gateway)
        gate.set()
        events = await connection.chunks()

    assert (before, draining) == (200, 503)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
    assert events[-1] == b"data: [DONE]\n\n"


async def test_requests_are_accepted_during_the_drain_delay() -> None:
    """While the probes fail already, so that load balancers have time to notice."""
    stop = asyncio.Event()
    async with (
        run_inference_service(FakeInference()) as control,
        run_gateway_until(
            stop,
            FakeInference(),
            management_listen=LOOPBACK,
            control_target=str(control.address),
            drain_delay_s=2,
        ) as gateway,
        gateway.client() as client,
    ):
        assert await probe_readiness(gateway) == 200
        stop.set()
        while await probe_readiness(gateway) == 200:
            pass
        ready, chat = await client.get("/ready"), await client.post(CHAT, json=BODY)

    assert (ready.status_code, ready.json()["error"]["code"]) == (503, "draining")
    assert (chat.status_code, chat.headers["connection"]) == (200, "close")


async def test_a_stream_after_the_grace_period_ends_with_an_error() -> None:
    fake, stop = FakeInference(), asyncio.Event()
    fake.script = Script(gate=asyncio.Event(), gate_at=1)
    async with (
        run_gateway_until(stop, fake, drain_grace_s=0.05) as gateway,
        open_connection(gateway.address) as connection,
    ):
        await connection.request(CHAT, BODY | {"stream": True})
        stop.set()
        events = await connection.chunks()
        await fake.calls.ended.wait()

    error = orjson.loads(events[-1].removeprefix(b"data: "))["error"]
    assert error["code"] == "draining"
    assert fake.calls.num_cancelled == 1


async def test_a_response_after_the_grace_period_is_503() -> None:
    fake, stop = FakeInference(), asyncio.Event()
    fake.script = Script(gate=asyncio.Event(), gate_at=1)
    async with (
        run_gateway_until(stop, fake, drain_grace_s=0.05) as gateway,
        open_connection(gateway.address) as connection,
    ):
        await connection.post(CHAT, BODY)
        await fake.calls.arrived.wait()
        stop.set()
        status, headers = await connection.head()

    assert status == 503
    assert headers["retry-after"] == "1"


async def test_a_call_has_a_deadline() -> None:
    fake = FakeInference()
    fake.script = Script(gate=asyncio.Event(), gate_at=1)
    async with run_gateway(fake, request_timeout_s=0.2) as gateway, gateway.client() as client:
        expired = await client.post(CHAT, json=BODY)
        stream = await client.post(CHAT, json=BODY | {"stream": True})

    assert expired.status_code == 504
    last = orjson.loads(stream.text.strip().split("data: ")[-1])
    assert last["error"]["code"] == "deadline_expired"


async def test_metrics_count_requests_by_route() -> None:
    async with (
        run_gateway(management_listen=LOOPBACK) as gateway,
        gateway.client() as client,
        AsyncClient(base_url=f"http://{gateway.management}", trust_env=False) as scraper,
    ):
        await client.get("/v1/models/org/other:1b")
        await client.get("/nothing/secret")
        text = (await scraper.get("/metrics")).text

    assert 'method="GET",route="/v1/models/{model:path}",status="200"' in text
    assert 'route="unmatched",status="404"' in text
    assert "secret" not in text
    assert "corral_http_server_sent_bytes_total" in text
