"""The readiness probe of `corral up` against real listeners."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from corral_cli.up.children import accepts_connections, count_running, responds_ok
from svc_kit.management import ManagementServer
from svc_kit.metrics import HttpMetrics, JobMetrics, RpcMetrics
from svc_kit.network import Address


@pytest.mark.parametrize(
    ("reply", "ready"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", True),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", False),
        (b"200\r\n", False),
        (b"", False),
    ],
)
async def test_only_a_200_is_ready(reply: bytes, ready: bool) -> None:
    """Not 503, an invalid response or an empty one."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(reply)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])

        assert await responds_ok(address, "/readyz") is ready


async def test_a_refused_connection_is_not_ready() -> None:
    """No exception is raised."""
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as server:
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])

    assert await responds_ok(address, "/readyz") is False


async def test_a_listener_accepts_connections_until_it_is_closed() -> None:
    """Whatever it answers."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        accepted = await accepts_connections(address)

    assert (accepted, await accepts_connections(address)) == (True, False)


async def test_what_a_service_runs_is_read_from_its_metrics() -> None:
    """Requests, calls of all methods, and jobs; None if nothing listens."""
    registry = CollectorRegistry()
    HttpMetrics(registry).in_flight.set(2)
    RpcMetrics(registry).in_flight.labels("/a").set(1)
    JobMetrics(registry).running.labels("batch").set(3)

    async def is_ready() -> bool:
        return True

    server = ManagementServer(listen="127.0.0.1:0", registry=registry, is_ready=is_ready)
    await server.start()
    address = server.address

    assert await count_running(address) == 6
    await server.close()
    assert await count_running(address) is None
