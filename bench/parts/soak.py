"""Memory growth over thousands of mixed requests."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import grpc.aio

from bench import operators
from bench.growth import growth
from bench.measurement import CORRAL, Measurement, Result, load_names
from bench.mix import Mix
from bench.processes import resident_bytes
from bench.servers import MODEL_NAME, Server
from bench.stage import Part, Stage
from bench.streams import LoadError

SLOTS, CONTEXT_TOKENS = 8, 1024
SETTINGS = {
    # Saved prefixes grow up to this limit, so a small limit is reached during the warm-up.
    "CORRAL_INFERENCE_ENGINE__SAVED_PREFIX_MIB": "8",
    # With huge pages a heap grows in steps of 2 MB, more than the growth allowed here.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=0",
}
ALLOWED_PERCENT = 2.0
WARM_UP = 0.3  # of the requests
MB = 1e6


class Sizes(NamedTuple):
    """Number of requests, concurrency, and number of samples."""

    requests: int
    concurrency: int
    samples: int


FULL = Sizes(10_000, concurrency=16, samples=100)
QUICK = Sizes(1_000, concurrency=16, samples=50)


def measure(stage: Stage) -> Iterator[Measurement]:
    """Send the mix and sample the memory of each process.

    The round of a measurement is the number of requests completed before it.
    """
    sizes = stage.sizes(FULL, QUICK)
    with stage.corral(stage.shape(SLOTS, CONTEXT_TOKENS), SETTINGS) as server:
        processes = dict(server.processes)
        processes["engine"] = operators.get_server_info(server.grpc_target).engine_pid
        stage.runner.run(_send_largest(server))
        sent = 0
        while sent < sizes.requests:
            numbers = range(sent, min(sent + sizes.requests // sizes.samples, sizes.requests))
            stage.runner.run(_send(server, numbers, sizes.concurrency))
            sent = numbers.stop
            for role, pid in processes.items():
                yield Measurement(role, sent, CORRAL, round(resident_bytes(pid) / MB, 3))
        _check_restarts(server)


async def _send_largest(server: Server) -> None:
    async with grpc.aio.insecure_channel(server.grpc_target) as channel:
        await Mix(channel, server.url, MODEL_NAME, CONTEXT_TOKENS).send_largest()


async def _send(server: Server, numbers: range, concurrency: int) -> None:
    async with grpc.aio.insecure_channel(server.grpc_target) as channel:
        mix = Mix(channel, server.url, MODEL_NAME, CONTEXT_TOKENS)
        queue = iter(numbers)

        async def caller() -> None:
            for number in queue:
                await mix.send(number)

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(caller())


def _check_restarts(server: Server) -> None:
    if restarts := operators.get_server_info(server.grpc_target).engine_restarts:
        raise LoadError(f"the engine restarted {restarts} times during the load; expected 0")


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare the growth of each process after the warm-up with the allowed growth."""
    results = []
    for role in load_names(measurements):
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
