"""The management server: metrics and probes over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from svc_kit.lifecycle import StartupError
from svc_kit.management import ManagementServer


async def is_always() -> bool:
    return True


async def is_never() -> bool:
    return False


@asynccontextmanager
async def run_management_server(*, is_ready: bool = True) -> AsyncIterator[ManagementServer]:
    """Run a management server on a free port with one counter."""
    registry = CollectorRegistry()
    Counter("pots", "Pots fired.", registry=registry).inc(3, {"trace_id": "1"})
    Gauge("vllm:kilns", "Kilns.", registry=registry).set(1)
    ready = is_always if is_ready else is_never
    server = ManagementServer(listen="127.0.0.1:0", registry=registry, is_ready=ready)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def exchange(server: ManagementServer, request: bytes) -> tuple[int, str]:
    """Send bytes and return status and body of the response."""
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(request)
    writer.write_eof()
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    lines = head.decode().split("\r\n")
    lengths = [line.partition(": ")[2] for line in lines if line.startswith("content-length")]
    assert request.startswith(b"HEAD") or lengths == [str(len(body))]
    return int(lines[0].split()[1]), body.decode()


async def get(server: ManagementServer, path: str) -> tuple[int, str]:
    return await exchange(server, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


async def test_metrics_are_in_prometheus_text_format() -> None:
    """Also with a query string, as scrapers send."""
    async with run_management_server() as server:
        status, body = await get(server, "/metrics?name[]=pots")

    assert status == 200
    assert "pots_total 3.0" in body


async def test_metrics_are_in_openmetrics_format_where_it_is_accepted() -> None:
    """With exemplars; names with a colon stay as they are."""
    async with run_management_server() as server:
        accept = b"Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n"
        status, body = await exchange(server, b"GET /metrics HTTP/1.1\r\n" + accept + b"\r\n")

    assert status == 200
    assert body.endswith("# EOF\n")
    assert 'pots_total 3.0 # {trace_id="1"} 3.0' in body
    assert "vllm:kilns 1.0" in body


@pytest.mark.parametrize(("is_ready", "expected"), [(True, 200), (False, 503)])
async def test_readiness_follows_the_service(is_ready: bool, expected: int) -> None:
    """Liveness does not: a service that is loading is alive."""
    async with run_management_server(is_ready=is_ready) as server:
        ready, alive = await get(server, "/readyz"), await get(server, "/healthz")

    assert (ready[0], alive[0]) == (expected, 200)


async def test_head_has_no_body() -> None:
    """Some probes use HEAD."""
    async with run_management_server() as server:
        assert await exchange(server, b"HEAD /metrics HTTP/1.1\r\n\r\n") == (200, "")


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"\x16\x03\x01 nonsense\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\n", 400),
        (b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n\r\n", 400),
    ],
)
async def test_other_requests_are_refused(request_line: bytes, status: int) -> None:
    """Unknown paths, other methods, invalid or incomplete HTTP, and long requests."""
    async with run_management_server() as server:
        assert (await exchange(server, request_line))[0] == status


async def test_a_port_in_use_is_refused() -> None:
    """As for the gRPC port."""
    async with run_management_server() as server:
        second = ManagementServer(
            listen=str(server.address), registry=CollectorRegistry(), is_ready=is_always
        )
        with pytest.raises(StartupError, match="the port is already in use"):
            await second.start()


async def test_a_server_can_be_closed_twice() -> None:
    """As after a partial start."""
    async with run_management_server() as server:
        await server.close()


async def test_connections_end_with_the_server() -> None:
    """Also those that a balancer keeps and has not asked anything on yet."""
    async with run_management_server() as server:
        reader, writer = await asyncio.open_connection(*server.address)
        assert (await get(server, "/healthz"))[0] == 200
        await server.close()
        async with asyncio.timeout(8):  # of the ten seconds that it waits for a request
            assert await reader.read() == b""
        writer.close()


async def test_the_number_of_connections_is_bounded() -> None:
    """One more is closed; it is served when another one has ended."""
    async with run_management_server() as server:
        idle = [await asyncio.open_connection(*server.address) for _ in range(64)]
        reader, writer = await asyncio.open_connection(*server.address)
        refused = await reader.read()
        for _, each in (*idle, (reader, writer)):
            each.close()
            await each.wait_closed()
        status, _ = await get(server, "/healthz")

    assert refused == b""
    assert status == 200
