"""HAProxy and Envoy before several inference services, with the configurations of `deploy/`."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import pytest
import yaml
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1.engine_service_pb2 import LoadModelRequest
from prometheus_client import CollectorRegistry

from gateway.config import GatewaySettings
from inference_svc.config import InferenceSettings
from svc_kit.errors import Draining, ReplicaFull
from svc_kit.management import run_management
from svc_kit.network import Address, parse_address
from svc_kit.rpc.replica_channel import RING_SIZE
from svc_kit.rpc.server import RpcServer
from tests.support.balancers import (
    CONFIGURATIONS,
    RunBalancer,
    Served,
    run_envoy,
    run_haproxy,
)
from tests.support.replicas import NUM_TOKENS, Replica, Replicas, run_replicas

pytestmark = pytest.mark.timeout(240)  # the first run downloads the programs
PROMPTS: Final = [f"prompt {number}" for number in range(32)]
NUM_CALLS: Final = 1500
NUM_KEYS: Final = 2000
NUM_GETS: Final = 20
NUM_CHECKS: Final = 4
"""After so many a balancer knows that a service is not ready."""
MAX_SHARE: Final = 0.54
"""Of two homes: three standard deviations of chance and of a ring of 65,536 points.."""
WHOLE: Final = "".join(f"{number} " for number in range(NUM_TOKENS))
StartBalancer = Callable[[Sequence[RpcServer]], AbstractAsyncContextManager[str]]


@asynccontextmanager
async def before(
    run: RunBalancer, folder: Path, servers: Sequence[RpcServer]
) -> AsyncIterator[str]:
    """Run a balancer before servers, which get management listeners."""
    async with AsyncExitStack() as stack:
        served = [await manage(stack, server) for server in servers]
        yield (await stack.enter_async_context(run(folder, served))).inference


async def manage(stack: AsyncExitStack, server: RpcServer) -> Served:
    """Give a server a management listener."""
    address = await stack.enter_async_context(run_probes(server.is_ready))
    return Served(server.address, address)


@asynccontextmanager
async def run_probes(is_ready: Callable[[], Awaitable[bool]]) -> AsyncIterator[Address]:
    """Serve probes at any port."""
    async with run_management("127.0.0.1:0", CollectorRegistry(), is_ready) as management:
        assert management is not None
        yield management.address


@pytest.fixture(params=[run_envoy, run_haproxy], ids=["Envoy", "HAProxy"])
def start_balancer(request: pytest.FixtureRequest, tmp_path: Path) -> StartBalancer:
    return partial(before, request.param, tmp_path)


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


def test_rings_have_the_points_of_our_own() -> None:
    """Or as many as HAProxy gives to the heaviest server: 16 for each of its weight."""
    envoy = yaml.safe_load((CONFIGURATIONS / "envoy.yaml").read_text())
    clusters = {each["name"]: each for each in envoy["static_resources"]["clusters"]}
    haproxy = (CONFIGURATIONS / "haproxy.cfg").read_text()
    home = haproxy.partition("backend home\n")[2].partition("\nbackend")[0]

    assert clusters["home"]["ring_hash_lb_config"] == {"minimum_ring_size": RING_SIZE}
    assert re.findall(r"default-server weight (\d+)", home) == ["256"]


def test_probes_are_at_the_ports_that_services_have() -> None:
    """Unless their settings name others."""
    envoy = (CONFIGURATIONS / "envoy.yaml").read_text()
    haproxy = (CONFIGURATIONS / "haproxy.cfg").read_text()
    probes = [
        parse_address(settings.model_fields["management_listen"].default).port
        for settings in (GatewaySettings, InferenceSettings)
    ]
    found = {*map(int, re.findall(r" port (\d+)$", haproxy, flags=re.MULTILINE))}
    found_by_envoy = {*map(int, re.findall(r"health_check_config: .*port_value: (\d+)", envoy))}

    assert found == {*probes}
    assert found_by_envoy == {probes[0]}  # it asks replicas for their gRPC health


def test_replicas_whose_refusals_are_503_are_not_left_out() -> None:
    """As Envoy's outlier detection would: a full one says UNAVAILABLE."""
    envoy = yaml.safe_load((CONFIGURATIONS / "envoy.yaml").read_text())

    assert not any("outlier_detection" in each for each in envoy["static_resources"]["clusters"])


async def test_homes_have_equal_shares(start_balancer: StartBalancer) -> None:
    """But for chance. With HAProxy's default of 16 points for each, one would have more."""
    async with run_replicas(start_balancer=start_balancer) as replicas:
        keys = [f"key {number}" for number in range(NUM_KEYS)]
        shares = Counter([await replicas.home_of(key) for key in keys])

    assert max(shares.values()) < MAX_SHARE * NUM_KEYS, shares


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


async def test_a_service_may_leave_as_soon_as_another_one_is_back(
    start_balancer: StartBalancer,
) -> None:
    """Before the balancer has asked whether that one is ready, since it accepts calls meanwhile."""
    async with run_replicas(start_balancer=start_balancer) as replicas:
        has_ended, answers = asyncio.Event(), list[str]()

        async def call_until_the_end(text: str) -> None:
            while not has_ended.is_set():
                answers.append(_text(await replicas.generate(pb.GenerateRequest(text=text))))

        async with asyncio.TaskGroup() as calls:
            for text in PROMPTS[:4]:
                calls.create_task(call_until_the_end(text))
            for number in (0, 1, 0, 1):
                replicas.servers[1 - number].set_serving(True)
                replicas.servers[number].set_serving(False)
                await _until_it_is_left(replicas, replicas.replicas[number])
            has_ended.set()

    assert set(answers) == {WHOLE}


@pytest.mark.parametrize("run", [run_envoy, run_haproxy], ids=["Envoy", "HAProxy"])
async def test_a_gateway_may_leave_as_soon_as_another_one_is_back(
    run: RunBalancer, tmp_path: Path
) -> None:
    ready, asked = [True, True], [0, 0]

    async def is_ready(number: int) -> bool:
        asked[number] += 1
        return ready[number]

    async with AsyncExitStack() as stack:
        gateways = [
            Served(address, address)
            for number in (0, 1)
            for address in [await stack.enter_async_context(run_probes(partial(is_ready, number)))]
        ]
        replicas = await stack.enter_async_context(run_replicas())
        inference = [await manage(stack, server) for server in replicas.servers]
        balancer = await stack.enter_async_context(run(tmp_path, inference, gateways))
        client = await stack.enter_async_context(httpx.AsyncClient())
        for number in (0, 1, 0, 1):
            ready[1 - number], ready[number] = True, False
            num_asked = asked[number]
            while asked[number] < num_asked + NUM_CHECKS:
                answer = await client.get(f"http://{balancer.http}/healthz")
                assert answer.status_code == 200


@pytest.mark.parametrize("run", [run_envoy, run_haproxy], ids=["Envoy", "HAProxy"])
async def test_what_cannot_be_sent_to_a_gateway_goes_to_another(
    run: RunBalancer, tmp_path: Path
) -> None:
    """Before the balancer has noticed that it is gone."""

    async def is_ready() -> bool:
        return True

    async with AsyncExitStack() as stack, AsyncExitStack() as first:
        addresses = [
            await each.enter_async_context(run_probes(is_ready)) for each in (first, stack)
        ]
        replicas = await stack.enter_async_context(run_replicas())
        inference = [await manage(stack, server) for server in replicas.servers]
        gateways = [Served(address, address) for address in addresses]
        balancer = await stack.enter_async_context(run(tmp_path, inference, gateways))
        client = await stack.enter_async_context(httpx.AsyncClient())
        await first.aclose()
        answers = [await client.get(f"http://{balancer.http}/healthz") for _ in range(NUM_GETS)]

    assert {(answer.status_code, answer.text) for answer in answers} == {(200, "ok\n")}


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
