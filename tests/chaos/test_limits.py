"""Drills of limits and usage with real processes: they log their figures.

Several inference services, each with its own data folder, keep one limit; and what clients were
told is what usage sums up, while processes are killed.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from svc_kit.rpc.client import open_channel
from tests.support.operators import Operator
from tests.support.rpc import Answer, connect, gather, make_chat
from tests.support.sdk_batches import find_processes, kill_process
from tests.support.services import Corral, corral_up, run_inference, wait_until_serving

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
log = logging.getLogger(__name__)
NUM_SERVICES = 3
SECONDS = 40
"""How long clients send requests as fast as they can."""
Metadata = tuple[tuple[str, str], ...]


class Place(NamedTuple):
    """A running Corral, and further inference services of the same installation."""

    corral: Corral
    targets: list[str]
    token: str

    def metadata(self, project: str, key: str = "drill") -> Metadata:
        return (
            ("authorization", f"Bearer {self.token}"),
            ("x-corral-project", project),
            ("x-corral-scopes", "inference"),
            ("x-corral-key", key),
        )

    @contextlib.asynccontextmanager
    async def operator(self) -> AsyncIterator[Operator]:
        async with open_channel(self.corral.control, token=self.token) as channel:
            yield Operator(channel)


@contextmanager
def place(folder: Path, *, num_services: int) -> Iterator[Place]:
    """Run an installation with several inference services."""
    settings: dict[str, Any] = {"usage_interval_s": 0.5, "engine.threads": 1}
    with ExitStack() as stack:
        corral = stack.enter_context(corral_up(folder, inference=settings))
        token_file = folder / "data" / "service-token"
        targets = [corral.target]
        for number in range(1, num_services):
            other = {
                **settings,
                "data_dir": str(folder / f"data-{number}"),
                "control_target": corral.control,
                "service_token_file": str(token_file),
            }
            own = folder / f"place-{number}"
            own.mkdir()
            targets.append(stack.enter_context(run_inference(own, other)).target)
        yield Place(corral, targets, token_file.read_text().strip())


async def test_several_services_keep_one_limit(tmp_path: Path) -> None:
    """Of requests and of tokens a minute, no more than one service with a token bucket, and most
    of it: what is left is not stranded in shares."""
    admitted: list[tuple[float, int]] = []
    refused = 0

    async def call(target: str, metadata: Metadata, until: float) -> None:
        nonlocal refused
        async with connect(target) as rpc:
            while time.monotonic() < until:
                request = make_chat(stopping={"max_tokens": 8})
                try:
                    answer = await gather(rpc.inference.Chat(request, metadata=metadata))
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                        raise
                    refused += 1
                    continue
                usage = answer.done.usage
                tokens = usage.prompt_tokens + usage.completion_tokens
                admitted.append((time.monotonic(), tokens))

    with place(tmp_path, num_services=NUM_SERVICES) as running:
        async with running.operator() as operator:
            for unit, amount in (("REQUESTS", 90), ("TOKENS", 4000)):
                admitted.clear()
                refused = 0
                project = unit.lower()
                await operator.create_limit(f"drill-{project}", unit, amount, project=project)
                await asyncio.sleep(6)  # every service has noticed the limit
                started = time.monotonic()
                async with asyncio.TaskGroup() as group:
                    for target in running.targets * 2:
                        metadata = running.metadata(project)
                        group.create_task(call(target, metadata, started + SECONDS))
                used = len(admitted) if unit == "REQUESTS" else sum(n for _, n in admitted)
                allowed = amount * (1 + SECONDS / 60)
                log.warning(
                    "%d services, %d %s per minute, %d s: used %d of %.0f (%+.1f %%), %d refused",
                    *(NUM_SERVICES, amount, project, SECONDS, used, allowed),
                    *(100 * (used / allowed - 1), refused),
                )
                assert 0.8 * allowed <= used <= allowed
                assert refused > 0


async def test_usage_is_what_clients_were_told_while_processes_are_killed(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Each request has a project of its own, so that each is compared exactly: one whose client
    was told its usage is counted with these numbers, one that ended early at most once."""
    dice = random.Random(pytestconfig.getoption("--seed"))
    rounds = min(4, int(pytestconfig.getoption("--rounds")))
    told: dict[str, Answer] = {}
    broken: set[str] = set()
    numbers = iter(range(10**6))
    is_over = asyncio.Event()

    async def call(running: Place) -> None:
        async with connect(running.corral.target) as rpc:
            while not is_over.is_set():
                project = f"p{next(numbers)}"
                request = make_chat(stopping={"max_tokens": dice.randrange(1, 60)})
                try:
                    metadata = running.metadata(project)
                    told[project] = await gather(rpc.inference.Chat(request, metadata=metadata))
                except grpc.aio.AioRpcError:
                    broken.add(project)
                    await asyncio.sleep(0.05)

    with place(tmp_path, num_services=1) as running:
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(call(running))
            for _ in range(rounds):
                await asyncio.sleep(dice.uniform(1, 3))
                await asyncio.to_thread(kill, running.corral, dice)
            is_over.set()
        async with running.operator() as operator:
            counted = await wait_for_usage(operator, set(told))

    sums = {name: [0, 0] for name in ("prompt_tokens", "completion_tokens")}
    for project, answer in told.items():
        counts = counted.pop(project)
        assert counts.requests == 1
        for name, pair in sums.items():
            expected, found = getattr(answer.done.usage, name), getattr(counts, name)
            assert expected == found, project
            pair[0] += expected
            pair[1] += found
    assert set(counted) <= broken
    assert all(counts.requests == 1 for counts in counted.values())
    log.warning(
        "%d kills: %d requests told, %d broken of which %d counted; tokens told and counted: %s",
        *(rounds, len(told), len(broken), len(counted), sums),
    )


def kill(corral: Corral, dice: random.Random) -> None:
    words = dice.choice(["serve inference", "serve inference", "serve control"])
    before = find_processes(corral, words)
    kill_process(corral, words)
    while set(find_processes(corral, words)) <= set(before):
        time.sleep(0.05)
    while True:
        try:
            wait_until_serving(corral.target)
            return
        except grpc.RpcError:  # it does not listen yet
            time.sleep(0.05)


async def wait_for_usage(operator: Operator, projects: set[str]) -> dict[str, Any]:
    counted: dict[str, Any] = {}
    async with asyncio.timeout(60):
        while not projects <= counted.keys():
            with contextlib.suppress(Exception):
                token = ""
                while True:
                    page = await operator.list_usage(page_token=token)
                    counted |= {each.project: each.counts for each in page.sums}
                    token = page.next_page_token
                    if not token:
                        break
            await asyncio.sleep(0.2)
    return counted
