"""Memory over thousands of mixed requests: what is not given back shows as a slope."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import grpc.aio

from bench import operators
from bench.growth import growth
from bench.measurement import CORRAL, Measurement, Part, Result, loads
from bench.mix import Mix
from bench.processes import resident_bytes
from bench.servers import MODEL_NAME, Server
from bench.stage import Stage
from bench.streams import LoadError

SLOTS, CONTEXT_TOKENS = 8, 1024
SETTINGS = {
    # Prefixes saved in memory are meant to grow up to their bound, so the bound is soon reached.
    "CORRAL_INFERENCE_ENGINE__SAVED_PREFIX_MIB": "8",
    # In huge pages a heap grows by 2 MB, if at all: more than is allowed of so small a model's.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=0",
}
ALLOWED_PERCENT = 2.0
WARM_UP = 0.3  # of the requests
MB = 1e6


class Sizes(NamedTuple):
    """How many requests, and how many of them at once."""

    requests: int
    concurrency: int
    samples: int


FULL = Sizes(10_000, concurrency=16, samples=100)
QUICK = Sizes(1_000, concurrency=16, samples=50)


def measure(stage: Stage) -> Iterator[Measurement]:
    """Send the mix and look at the processes now and then; a measurement's round is the number of
    requests that were done."""
    sizes = stage.sizes(FULL, QUICK)
    with stage.corral(stage.shape(SLOTS, CONTEXT_TOKENS), SETTINGS) as server:
        processes = dict(server.processes)
        processes["engine"] = operators.server_info(server.grpc_target).engine_pid
        stage.runner.run(_stretch(server))
        sent = 0
        while sent < sizes.requests:
            numbers = range(sent, min(sent + sizes.requests // sizes.samples, sizes.requests))
            stage.runner.run(_send(server, numbers, sizes.concurrency))
            sent = numbers.stop
            for role, pid in processes.items():
                yield Measurement(role, sent, CORRAL, round(resident_bytes(pid) / MB, 3))
        _check_left(server)


async def _stretch(server: Server) -> None:
    async with grpc.aio.insecure_channel(server.grpc_target) as channel:
        await Mix(channel, server.url, MODEL_NAME, CONTEXT_TOKENS).stretch()


async def _send(server: Server, numbers: range, concurrency: int) -> None:
    async with grpc.aio.insecure_channel(server.grpc_target) as channel:
        mix = Mix(channel, server.url, MODEL_NAME, CONTEXT_TOKENS)
        waiting = iter(numbers)

        async def caller() -> None:
            for number in waiting:
                await mix.send(number)

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(caller())


def _check_left(server: Server) -> None:
    if restarts := operators.server_info(server.grpc_target).engine_restarts:
        raise LoadError(f"the engine was started again {restarts} times")


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """The growth of each process from the end of the warm-up on."""
    results = []
    for role in loads(measurements):
        points = [(float(m.round), m.value) for m in measurements if m.load == role]
        percent = 100 * growth(points, WARM_UP)
        results.append(
            Result(
                f"{role}, {points[-1][1]:.0f} MB at the end",
                (percent / ALLOWED_PERCENT,),
                1.0,
                percent,
                ALLOWED_PERCENT,
                "allowed",
                unit="%",
                bound="at most",
            )
        )
    return results


PART = Part(
    name="soak",
    title="Memory over many requests",
    text=(
        f"{FULL.requests:,} mixed requests with the bundled model, {FULL.concurrency} at once: "
        "gRPC and HTTP, chats over one system prompt, constraints, several choices, embeddings; a "
        "quarter is cancelled, left, refused or too late. Growth of the resident memory is the "
        f"median slope over all pairs of samples after the first {WARM_UP:.0%} of the requests. "
        "The engine allocates in small pages here, for a page of 2 MB would hide what grows."
    ),
    measure=measure,
    conclude=conclude,
)
