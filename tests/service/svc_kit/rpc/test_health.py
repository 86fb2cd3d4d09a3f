"""The standard gRPC health service."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from svc_kit import errors
from svc_kit.auth.authenticator import Authenticator
from svc_kit.rpc.client import translate_errors
from tests.support.rpc_servers import SERVICE, Running, run_rpc_server

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def health_stub(running: Running) -> Any:
    return health_pb2_grpc.HealthStub(running.channel)


def check_request(service: str) -> Any:
    return health_pb2.HealthCheckRequest(service=service)


@pytest.mark.parametrize("service", ["", SERVICE, "grpc.health.v1.Health"])
async def test_check_covers_the_server_and_each_service(service: str) -> None:
    """The health service itself is unknown to Check."""
    async with run_rpc_server() as running:
        if service == "grpc.health.v1.Health":
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await health_stub(running).Check(check_request(service))
            assert raised.value.code() is grpc.StatusCode.NOT_FOUND
            return
        before = (await health_stub(running).Check(check_request(service))).status
        running.server.set_serving(False)
        after = (await health_stub(running).Check(check_request(service))).status

    assert (before, after) == (SERVING, NOT_SERVING)


async def test_one_service_can_stop_serving() -> None:
    """The server as a whole keeps serving."""
    async with run_rpc_server() as running:
        running.server.set_serving(False, SERVICE)
        whole = (await health_stub(running).Check(check_request(""))).status
        part = (await health_stub(running).Check(check_request(SERVICE))).status
        every = (await health_stub(running).List(health_pb2.HealthListRequest())).statuses

    assert (whole, part) == (SERVING, NOT_SERVING)
    assert {name: value.status for name, value in every.items()} == {
        "": SERVING,
        SERVICE: NOT_SERVING,
    }


async def test_watch_reports_every_change() -> None:
    """Load balancers do not need to poll."""
    async with run_rpc_server() as running:
        watch = health_stub(running).Watch(check_request(SERVICE))
        statuses = [(await watch.read()).status]
        for is_serving in (False, True):
            running.server.set_serving(is_serving)
            statuses.append((await watch.read()).status)
        watch.cancel()

    assert statuses == [SERVING, NOT_SERVING, SERVING]


async def test_watch_of_an_unknown_service_reports_it() -> None:
    """The protocol requires a status, not an error."""
    async with run_rpc_server() as running:
        watch = health_stub(running).Watch(check_request("no.Such"))
        status = (await watch.read()).status
        watch.cancel()

    assert status == SERVICE_UNKNOWN


async def test_a_drain_ends_watches() -> None:
    """They do not delay the drain."""
    async with run_rpc_server() as running:
        watch = health_stub(running).Watch(check_request(""))
        statuses = [(await watch.read()).status]
        await running.server.drain(60)
        with pytest.raises(errors.Draining), translate_errors():
            statuses += [event.status async for event in _read_events(watch)]

    assert statuses[0] == SERVING


async def _read_events(watch: Any) -> AsyncIterator[Any]:
    while (event := await watch.read()) is not grpc.aio.EOF:
        yield event


async def test_a_watcher_that_does_not_read_does_not_block_others() -> None:
    """Other watchers receive changes."""
    async with run_rpc_server() as running:
        stalled = health_stub(running).Watch(check_request(SERVICE))
        for number in range(200):
            running.server.set_serving(bool(number % 2))
        watch = health_stub(running).Watch(check_request(SERVICE))
        running.server.set_serving(False)
        while (await watch.read()).status is not NOT_SERVING:
            pass
        stalled.cancel()
        watch.cancel()


async def test_health_requires_no_credential() -> None:
    """Probes have none."""
    async with run_rpc_server(authenticator=Authenticator()) as running:
        answer = await health_stub(running).Check(check_request(""))

    assert answer.status == SERVING
