"""The standard health service on a real server."""

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


def health_of(running: Running) -> Any:
    """The health service as a prober sees it."""
    return health_pb2_grpc.HealthStub(running.channel)


def about(service: str) -> Any:
    """A request about one service."""
    return health_pb2.HealthCheckRequest(service=service)


@pytest.mark.parametrize("service", ["", SERVICE, "grpc.health.v1.Health"])
async def test_check_answers_for_the_server_and_each_service(service: str) -> None:
    """The health service itself is not in its own list."""
    async with run_rpc_server() as running:
        if service == "grpc.health.v1.Health":
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await health_of(running).Check(about(service))
            assert raised.value.code() is grpc.StatusCode.NOT_FOUND
            return
        serving_now = (await health_of(running).Check(about(service))).status
        running.server.set_serving(False)
        not_any_more = (await health_of(running).Check(about(service))).status

    assert (serving_now, not_any_more) == (SERVING, NOT_SERVING)


async def test_one_service_can_stop_serving_alone() -> None:
    """A dead engine is not a dead server."""
    async with run_rpc_server() as running:
        running.server.set_serving(False, SERVICE)
        whole = (await health_of(running).Check(about(""))).status
        part = (await health_of(running).Check(about(SERVICE))).status
        every = (await health_of(running).List(health_pb2.HealthListRequest())).statuses

    assert (whole, part) == (SERVING, NOT_SERVING)
    assert {name: value.status for name, value in every.items()} == {
        "": SERVING,
        SERVICE: NOT_SERVING,
    }


async def test_watch_tells_every_change() -> None:
    """Balancers take a server out without asking again."""
    async with run_rpc_server() as running:
        watch = health_of(running).Watch(about(SERVICE))
        seen = [(await watch.read()).status]
        for is_serving in (False, True):
            running.server.set_serving(is_serving)
            seen.append((await watch.read()).status)
        watch.cancel()

    assert seen == [SERVING, NOT_SERVING, SERVING]


async def test_watch_of_an_unknown_service_says_so() -> None:
    """The protocol wants an answer here, not an error."""
    async with run_rpc_server() as running:
        watch = health_of(running).Watch(about("no.Such"))
        status = (await watch.read()).status
        watch.cancel()

    assert status == SERVICE_UNKNOWN


async def test_a_drain_tells_watchers_and_ends_them() -> None:
    """A watch never ends by itself; it must not hold up the drain."""
    async with run_rpc_server() as running:
        watch = health_of(running).Watch(about(""))
        seen = [(await watch.read()).status]
        await running.server.drain(60)
        with pytest.raises(errors.Draining), translate_errors():
            seen += [event.status async for event in _rest_of(watch)]

    assert seen[0] == SERVING


async def _rest_of(watch: Any) -> AsyncIterator[Any]:
    while (event := await watch.read()) is not grpc.aio.EOF:
        yield event


async def test_a_watcher_that_does_not_read_holds_nobody_up() -> None:
    """Others see changes, and the server can turn NOT_SERVING."""
    async with run_rpc_server() as running:
        stalled = health_of(running).Watch(about(SERVICE))
        for number in range(200):
            running.server.set_serving(bool(number % 2))
        watch = health_of(running).Watch(about(SERVICE))
        running.server.set_serving(False)
        while (await watch.read()).status is not NOT_SERVING:
            pass
        stalled.cancel()
        watch.cancel()


async def test_health_asks_for_no_credential() -> None:
    """Probes have none."""
    async with run_rpc_server(authenticator=Authenticator()) as running:
        answer = await health_of(running).Check(about(""))

    assert answer.status == SERVING
