"""Time to first token of a short interactive request during the prefill of long prompts."""

import asyncio
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from corral.inference.v1 import generation_pb2

from bench import grpc_load, operators
from bench.contest import alternate
from bench.measurement import CORRAL, Measurement, Result, median, values_by_round
from bench.servers import MODEL_NAME, Server
from bench.stage import Part, Stage
from bench.streams import LoadError, Stream
from bench.workload import SAMPLINGS, Workload

KEY = "a key of the benchmark's own"
SETTINGS = {
    "CORRAL_INFERENCE_KEYS": json.dumps(
        [
            {
                "name": "bench",
                "sha256": hashlib.sha256(KEY.encode()).hexdigest(),
                "scopes": ["inference", "admin"],
                "priority": "interactive",
            }
        ]
    )
}
SHORT_ALONE, LONG_ALONE = "short alone", "long alone"
SHORT_BESIDE, LONG_BESIDE = "short beside long", "long beside short"
SLACK, LEAST_SHARE = 1.5, 0.9


class Sizes(NamedTuple):
    """Lengths in tokens."""

    long_prompts: int
    long_tokens: int
    short_requests: int  # sequential
    short_tokens: int
    output_tokens: int
    rounds: int


FULL = Sizes(4, 1500, short_requests=4, short_tokens=32, output_tokens=8, rounds=5)
QUICK = Sizes(4, 1500, short_requests=2, short_tokens=32, output_tokens=4, rounds=1)


def measure(stage: Stage) -> Iterator[Measurement]:
    """Measure short requests alone, long prompts alone, and both together, alternating."""
    sizes = stage.sizes(FULL, QUICK)
    shape = stage.shape(slots=16, context_tokens=sizes.long_tokens + 256)
    with stage.corral(shape, SETTINGS, KEY) as server:
        turns = [_short_alone, _long_alone, _both]
        for number in range(stage.rounds or sizes.rounds):
            for turn in alternate(turns, number):
                yield from turn(stage, server, sizes, number)


def _short_alone(stage: Stage, server: Server, sizes: Sizes, number: int) -> Iterator[Measurement]:
    streams = stage.run_grpc_load(server, _short(sizes, 3 * number), KEY).streams
    yield Measurement(SHORT_ALONE, number, CORRAL, _first_token_ms(streams))


def _long_alone(stage: Stage, server: Server, sizes: Sizes, number: int) -> Iterator[Measurement]:
    steps = operators.get_load(server.grpc_target, KEY).num_steps
    streams = stage.run_grpc_load(server, _long(sizes, 3 * number + 1), KEY).streams
    steps = operators.get_load(server.grpc_target, KEY).num_steps - steps
    figures = {"step_ms": round(1e3 * _prefill_s(streams) / max(steps, 1), 3), "steps": steps}
    yield Measurement(LONG_ALONE, number, CORRAL, _prefill_rate(streams, sizes), figures)


def _both(stage: Stage, server: Server, sizes: Sizes, number: int) -> Iterator[Measurement]:
    long, short = _long(sizes, 3 * number + 2), _short(sizes, 3 * number + 2)

    async def together() -> tuple[list[Stream], list[Stream]]:
        async def later() -> list[Stream]:
            await asyncio.sleep(0.3)  # until the prefill of the long prompts has started
            return await grpc_load.run_load(server.grpc_target, short, MODEL_NAME, KEY)

        first = grpc_load.run_load(server.grpc_target, long, MODEL_NAME, KEY)
        return await asyncio.gather(first, later())

    longs, shorts = stage.runner.run(together())
    end = max(stream.arrivals[0].time for stream in longs)
    inside = [stream for stream in shorts if stream.arrivals[0].time < end]
    if not inside:
        raise LoadError(
            "the prefill of the long prompts ended before the first token of a short request"
        )
    figures = {"requests": len(inside)}
    yield Measurement(SHORT_BESIDE, number, CORRAL, _first_token_ms(inside), figures)
    yield Measurement(LONG_BESIDE, number, CORRAL, _prefill_rate(longs, sizes))


def _short(sizes: Sizes, seed: int) -> Workload:
    return Workload(
        requests=sizes.short_requests,
        concurrency=1,
        prompt_tokens=sizes.short_tokens,
        output_tokens=sizes.output_tokens,
        sampling=SAMPLINGS["sampled"],
        seed=seed,
        priority=generation_pb2.PRIORITY_INTERACTIVE,
    )


def _long(sizes: Sizes, seed: int) -> Workload:
    return Workload(
        requests=sizes.long_prompts,
        concurrency=sizes.long_prompts,
        prompt_tokens=sizes.long_tokens,
        output_tokens=1,
        sampling=SAMPLINGS["sampled"],
        seed=1000 + seed,
        priority=generation_pb2.PRIORITY_NORMAL,
    )


def _first_token_ms(streams: Sequence[Stream]) -> float:
    return 1e3 * median([stream.first_token_s for stream in streams])


def _prefill_s(streams: Sequence[Stream]) -> float:
    return max(s.arrivals[0].time for s in streams) - min(s.sent for s in streams)


def _prefill_rate(streams: Sequence[Stream], sizes: Sizes) -> float:
    return sizes.long_prompts * sizes.long_tokens / _prefill_s(streams)


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare the first token with its limit, and the prefill with that of long prompts alone."""
    alone = values_by_round(measurements, SHORT_ALONE, CORRAL)
    beside = values_by_round(measurements, SHORT_BESIDE, CORRAL)
    steps = {m.round: m.figures["step_ms"] for m in measurements if m.load == LONG_ALONE}
    allowed = {n: SLACK * value + steps[n] for n, value in alone.items() if n in steps}
    prefill = values_by_round(measurements, LONG_BESIDE, CORRAL)
    unhindered = values_by_round(measurements, LONG_ALONE, CORRAL)
    return [
        Result(
            "first token of a short request",
            _ratios(beside, allowed),
            1.0,
            median([*beside.values()]),
            median([*allowed.values()]),
            f"{SLACK} x alone + one step",
            unit="ms",
            bound="at most",
        ),
        Result(
            "prefill of the long prompts",
            _ratios(prefill, unhindered),
            LEAST_SHARE,
            median([*prefill.values()]),
            median([*unhindered.values()]),
            "the same prompts alone",
        ),
    ]


def _ratios(own: dict[int, float], other: dict[int, float]) -> tuple[float, ...]:
    return tuple(value / other[n] for n, value in own.items() if n in other)


PART = Part(
    name="interactive",
    title="A short request beside long prompts",
    text=(
        f"{FULL.long_prompts} prompts of {FULL.long_tokens:,} tokens arrive together; meanwhile "
        f"{FULL.short_requests} interactive requests of {FULL.short_tokens} tokens, "
        f"{FULL.output_tokens} out, come one after the other. Their first token may take "
        f"{SLACK} times as long as on the idle engine, and one step of the long prompts."
    ),
    measure=measure,
    conclude=conclude,
)
