"""What each `engine.policy` does to answers and to prompts, on one trace of arrivals."""

import asyncio
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from statistics import mean
from typing import NamedTuple

from bench import grpc_load
from bench.contest import alternate
from bench.measurement import Measurement, Result, median, values_by_round
from bench.plots import line_chart
from bench.servers import MODEL_NAME, Server
from bench.stage import Part, Stage
from bench.streams import Stream, quantile
from bench.workload import SAMPLINGS, Workload

POLICIES = "latency_first", "balanced", "throughput_first"
LATENCY_FIRST, DEFAULT, THROUGHPUT_FIRST = POLICIES
GAP = "time between two tokens of a chat, median"
LONGEST_GAP = "longest time between two tokens of a chat, mean"
CHAT, LONG = "first token of a chat, mean", "first token of a long prompt, mean"
SPEED = "all requests"
UNITS = {SPEED: "requests/s"}


class Sizes(NamedTuple):
    """The trace: requests, seconds between two of them on average, and their tokens."""

    chats: int
    chat_every_s: float
    longs: int
    long_every_s: float
    chat_tokens: tuple[int, int]
    long_tokens: tuple[int, int]
    rounds: int


FULL = Sizes(12, 3.0, 3, 12.0, (64, 64), (1500, 32), rounds=3)
QUICK = Sizes(3, 0.2, 1, 0.1, (16, 8), (256, 4), rounds=1)


def measure(stage: Stage) -> Iterator[Measurement]:
    """Send the trace of each round to a server of each policy, one after the other."""
    sizes = stage.sizes(FULL, QUICK)
    shape = stage.shape(slots=8, context_tokens=sum(sizes.long_tokens) + 64)
    with ExitStack() as stack:
        served = [
            (name, stack.enter_context(stage.corral(shape, _policy(name)))) for name in POLICIES
        ]
        for number in range(stage.rounds or sizes.rounds):
            for name, server in alternate(served, number):
                chats, longs = stage.runner.run(_replay(server, sizes, number))
                yield from _measurements(name, number, chats, longs)


def _policy(name: str) -> Mapping[str, str]:
    return {"CORRAL_INFERENCE_ENGINE__POLICY": name}


async def _replay(server: Server, sizes: Sizes, number: int) -> tuple[list[Stream], list[Stream]]:
    """The streams of the chats and of the long prompts. Each is sent at its time, however many
    are not answered yet."""
    times, began = random.Random(number), time.monotonic()

    async def send(at: float, tokens: tuple[int, int], seed: int) -> Stream:
        workload = Workload(1, 1, *tokens, SAMPLINGS["sampled"], seed)
        await asyncio.sleep(at - (time.monotonic() - began))
        (stream,) = await grpc_load.run_load(server.grpc_target, workload, MODEL_NAME)
        return stream

    async def send_all(count: int, every_s: float, tokens: tuple[int, int]) -> list[Stream]:
        at, calls = 0.0, []
        for _ in range(count):
            at += times.expovariate(1 / every_s)
            calls.append(send(at, tokens, seed=times.randrange(1 << 30)))
        return await asyncio.gather(*calls)

    chats = send_all(sizes.chats, sizes.chat_every_s, sizes.chat_tokens)
    longs = send_all(sizes.longs, sizes.long_every_s, sizes.long_tokens)
    return await asyncio.gather(chats, longs)


def _measurements(
    policy: str, number: int, chats: Sequence[Stream], longs: Sequence[Stream]
) -> Iterator[Measurement]:
    gaps = [1e3 * gap for stream in chats for gap in stream.gaps_s]
    everything = [*chats, *longs]
    wall_s = max(each.ended for each in everything) - min(each.sent for each in everything)
    for load, value in {
        GAP: quantile(gaps, 0.5),
        LONGEST_GAP: 1e3 * mean(max(stream.gaps_s) for stream in chats),
        CHAT: _first_token_ms(chats),
        LONG: _first_token_ms(longs),
        SPEED: len(everything) / wall_s,
    }.items():
        yield Measurement(load, number, policy, value)


def _first_token_ms(streams: Sequence[Stream]) -> float:
    """The mean, since what a few wait beside a long prompt is what policies decide."""
    return 1e3 * mean(stream.first_token_s for stream in streams)


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """The default holds the times between tokens as well as `latency_first`, within a fifth, lets
    long prompts wait no longer than that, and chats no longer than `throughput_first`."""
    return [
        _compare(measurements, GAP, LATENCY_FIRST, 1.2),
        _compare(measurements, LONGEST_GAP, LATENCY_FIRST, None),
        _compare(measurements, LONGEST_GAP, THROUGHPUT_FIRST, None),
        _compare(measurements, CHAT, LATENCY_FIRST, 1.2),
        _compare(measurements, CHAT, THROUGHPUT_FIRST, 1.0),
        _compare(measurements, LONG, LATENCY_FIRST, 1.0),
        _compare(measurements, LONG, THROUGHPUT_FIRST, None),
        _compare(measurements, SPEED, THROUGHPUT_FIRST, None),
    ]


def _compare(
    measurements: Sequence[Measurement], load: str, other: str, target: float | None
) -> Result:
    own, others = (values_by_round(measurements, load, each) for each in (DEFAULT, other))
    return Result(
        f"{load}, beside {other}",
        tuple(value / others[number] for number, value in own.items() if number in others),
        target,
        median([*own.values()]),
        median([*others.values()]),
        other,
        UNITS.get(load, "ms"),
        bound="at most",
    )


def draw(measurements: Sequence[Measurement]) -> Mapping[str, str]:
    """A chart of the times between tokens, and one of the first tokens."""
    charts = {"between-tokens": (GAP, LONGEST_GAP), "first-tokens": (CHAT, LONG)}
    return {name: _chart(measurements, loads) for name, loads in charts.items()}


def _chart(measurements: Sequence[Measurement], loads: Sequence[str]) -> str:
    series = {
        load: [
            (each, median([*values_by_round(measurements, load, each).values()]))
            for each in POLICIES
        ]
        for load in loads
    }
    return line_chart(series, "ms, by policy: median over the rounds")


PART = Part(
    name="policies",
    title="Policies on one trace",
    text=(
        f"{FULL.chats} chats ({FULL.chat_tokens[0]} tokens in, {FULL.chat_tokens[1]} out) arrive "
        f"at random, one every {FULL.chat_every_s} s on average, and {FULL.longs} prompts of "
        f"{FULL.long_tokens[0]:,} tokens ({FULL.long_tokens[1]} out), one every "
        f"{FULL.long_every_s} s, at a server of each `engine.policy` in turns. `{DEFAULT}` is the "
        "default: a reader should notice a long prompt no more than with `latency_first`, who "
        "sends one should not wait longer than there, and a chat should not begin later than with "
        "`throughput_first`, whose steps with a long prompt take seconds: few answers run into "
        "one, but who asks meanwhile waits."
    ),
    measure=measure,
    conclude=conclude,
    draw=draw,
)
