"""Throughput over the number of replicas and gateways, and the pause when a replica dies."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from bench import loadgen
from bench.measurement import CORRAL, Measurement, Result, load_names, median, values_by_round
from bench.paths import BUNDLED_MODEL
from bench.plots import line_chart
from bench.replicas import Replicas, paced_replicas
from bench.servers import MODEL_NAME, EngineShape
from bench.stage import Part, Stage
from bench.step_times import StepTimes
from bench.streams import LoadFigures, Stream, quantile
from bench.workload import SAMPLINGS, Workload

SLOTS: Final = 4
TIMES: Final = StepTimes(0.04, 0.004, 0.004)
"""Long enough for eight engines on two cores."""
STEP_S: Final = TIMES.call_s + SLOTS * TIMES.row_s
ENGINE: Final = EngineShape(BUNDLED_MODEL, SLOTS, context_tokens=512, threads=1)
LEAST_SHARE: Final = 0.9
"""Of as many times the speed of one replica as there are."""
PROMPT = "first token"
PAUSE_P50, PAUSE_P99 = "pause of a stream whose replica dies, p50", "the same, p99"
REPLICAS: Final = "{count} x replica, {gateways} x gateway"


class Sizes(NamedTuple):
    """Replicas with one and with two gateways, requests for each slot, tokens of each, deaths."""

    counts: tuple[int, ...]
    requests: int
    tokens: int
    rounds: int
    deaths: int


FULL = Sizes((1, 2, 4, 8), 8, 24, rounds=3, deaths=5)
QUICK = Sizes((1, 2), 2, 8, rounds=1, deaths=1)


def measure(stage: Stage) -> Iterator[Measurement]:
    """Measure each number of replicas in each round, then let replicas die."""
    sizes = stage.sizes(FULL, QUICK)
    for number in range(stage.rounds or sizes.rounds):
        for count in sizes.counts:
            yield from _throughput(stage, sizes, count, number)
    for number in range(sizes.deaths):
        yield from _pauses(stage, sizes, number)


def _throughput(stage: Stage, sizes: Sizes, count: int, number: int) -> Iterator[Measurement]:
    with paced_replicas(
        count, ENGINE, TIMES, stage.folder / f"{count}", num_gateways=2
    ) as replicas:
        for gateways in (1, 2):
            # Twice as many callers as slots: homes are never equally full.
            callers = 2 * SLOTS * count // gateways
            load = Workload(
                requests=sizes.requests * SLOTS * count // gateways,
                concurrency=callers,
                prompt_tokens=32,
                output_tokens=sizes.tokens,
                sampling=SAMPLINGS["greedy"],
                seed=10 * number + gateways,
            )
            streams = stage.runner.run(_ask(replicas.urls[:gateways], load))
            speed = LoadFigures.from_streams(streams).tokens_per_s
            name = REPLICAS.format(count=count, gateways=gateways)
            yield Measurement(name, number, CORRAL, speed)


async def _ask(urls: Sequence[str], load: Workload) -> list[Stream]:
    """Send the load to each gateway, with prompts of its own."""
    loads = [
        loadgen.run_load(url, load.in_round(number), MODEL_NAME) for number, url in enumerate(urls)
    ]
    return [stream for streams in await asyncio.gather(*loads) for stream in streams]


def _pauses(stage: Stage, sizes: Sizes, number: int) -> Iterator[Measurement]:
    """Kill one of two replicas in the middle of the streams of half of all slots."""
    load = Workload(
        requests=SLOTS,
        concurrency=SLOTS,
        prompt_tokens=32,
        output_tokens=4 * sizes.tokens,
        sampling=SAMPLINGS["greedy"],
        seed=number,
    )
    folder = stage.folder / "deaths"
    with paced_replicas(2, ENGINE, TIMES, folder, num_gateways=1) as replicas:
        stage.runner.run(_ask(replicas.urls, load.in_round(1)))  # connections and caches are there
        streams = stage.runner.run(_ask_and_kill(replicas, load, number % 2))
    pauses = [1e3 * max(each.gaps_s) for each in streams]
    moved = [pause for pause in pauses if pause > 2e3 * STEP_S]
    first_token_ms = 1e3 * median([each.first_token_s for each in streams])
    for name, share in ((PAUSE_P50, 0.5), (PAUSE_P99, 0.99)):
        if moved:
            yield Measurement(name, number, CORRAL, quantile(moved, share), {"moved": len(moved)})
            yield Measurement(name, number, PROMPT, first_token_ms)


async def _ask_and_kill(replicas: Replicas, load: Workload, victim: int) -> list[Stream]:
    asking = asyncio.create_task(_ask(replicas.urls, load))
    await asyncio.sleep(load.output_tokens * STEP_S / 2)
    replicas.kill(victim)
    return await asking


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare with as many times the speed of one replica, and the pauses with the first tokens."""
    names = load_names(measurements)
    results = []
    one = values_by_round(measurements, REPLICAS.format(count=1, gateways=1), CORRAL)
    for name in names:
        own = values_by_round(measurements, name, CORRAL)
        if name in (PAUSE_P50, PAUSE_P99):
            results.append(_beside_first_token(measurements, name, own))
            continue
        count = int(name.split()[0])
        results.append(
            Result(
                name,
                tuple(value / count / one[number] for number, value in own.items()),
                LEAST_SHARE,
                median([*own.values()]),
                count * median([*one.values()]),
                f"{count} times one replica",
            )
        )
    return results


def _beside_first_token(
    measurements: Sequence[Measurement], name: str, own: Mapping[int, float]
) -> Result:
    first = values_by_round(measurements, name, PROMPT)
    return Result(
        name,
        tuple(value / first[number] for number, value in own.items()),
        None,
        median([*own.values()]),
        median([*first.values()]),
        PROMPT,
        "ms",
        "at most",
    )


def draw(measurements: Sequence[Measurement]) -> Mapping[str, str]:
    """The throughput over the number of replicas, beside that of as many times one."""
    speeds = {
        name: median([*values_by_round(measurements, name, CORRAL).values()])
        for name in load_names(measurements)
    }
    one = speeds[REPLICAS.format(count=1, gateways=1)]
    counts = sorted({int(name.split()[0]) for name in speeds if name[0].isdigit()})
    series = {
        f"{gateways} x gateway": [
            (str(count), speeds[REPLICAS.format(count=count, gateways=gateways)])
            for count in counts
        ]
        for gateways in (1, 2)
    }
    series["linear"] = [(str(count), count * one) for count in counts]
    return {"throughput": line_chart(series, "tokens/s, by replicas: median over the rounds")}


PART = Part(
    name="replicas",
    title="Replicas",
    text=(
        f"Inference services with {SLOTS} slots, whose engines compute the bundled model at a pace "
        f"of {1e3 * STEP_S:.0f} ms a step, so that eight of them share two cores, behind one and "
        f"two gateways: {FULL.tokens} tokens for each of many prompts, from twice as many callers "
        "as there are slots. Then one of two replicas is killed, with its engine, in the middle of "
        f"{SLOTS} streams: of those that go on at the other one, which computes their prompts and "
        "tokens at its pace, the longest time between two tokens."
    ),
    measure=measure,
    conclude=conclude,
    draw=draw,
)
