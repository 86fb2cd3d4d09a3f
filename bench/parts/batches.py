"""Cost of a batch line in addition to the engine's time, compared with bare calls."""

import itertools
import time
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from bench import operators
from bench.batch_load import LINES_AT_ONCE, new_chats, run_bare, run_batch
from bench.measurement import CORRAL, Measurement, Result, median
from bench.paths import BUNDLED_MODEL
from bench.servers import EngineShape, Server
from bench.stage import Part, Stage

FULL_LINES, QUICK_LINES, ROUNDS = 1000, 20, 5
ALLOWED_MS = 2.0
LINE, BARE = "a line of one token", "a bare call"
SHAPE = EngineShape(BUNDLED_MODEL, slots=16, context_tokens=1024, threads=1)
"""A small model, so that the time outside the engine is a larger part of the total."""


def measure(stage: Stage) -> Iterator[Measurement]:
    """Alternate between a batch and as many bare calls."""
    count = stage.sizes(FULL_LINES, QUICK_LINES)
    firsts = itertools.count(0, count)
    with stage.corral(SHAPE) as server, stage.control("control", _beside(server)) as control:
        for number in range(stage.rounds or stage.sizes(ROUNDS, 1)):
            batch = run_batch(control.grpc_target, new_chats(count, next(firsts)))
            yield _over_engine(stage, server, LINE, number, count, batch)
            bare = run_bare(server.grpc_target, new_chats(count, next(firsts)))
            yield _over_engine(stage, server, BARE, number, count, bare)


def _beside(server: Server) -> dict[str, str]:
    return {"CORRAL_CONTROL_INFERENCE_TARGET": server.grpc_target}


def _over_engine(
    stage: Stage,
    server: Server,
    load: str,
    number: int,
    count: int,
    work: Coroutine[Any, Any, None],
) -> Measurement:
    """Measure the milliseconds per chat outside the engine's steps."""
    before, started = _engine_s(server), time.perf_counter()
    stage.runner.run(work)
    wall_ms = 1e3 * (time.perf_counter() - started) / count
    engine_ms = 1e3 * (_engine_s(server) - before) / count
    figures = {"wall_ms": round(wall_ms, 3), "engine_ms": round(engine_ms, 3)}
    return Measurement(load, number, CORRAL, wall_ms - engine_ms, figures)


def _engine_s(server: Server) -> float:
    return operators.step_seconds(operators.get_load(server.grpc_target))


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare a line with its allowed cost. Bare calls have no target."""
    lines = [one.value for one in measurements if one.load == LINE]
    return [
        Result(
            LINE,
            tuple(value / ALLOWED_MS for value in lines),
            1.0,
            median(lines),
            ALLOWED_MS,
            "allowed",
            unit="ms",
            bound="at most",
        )
    ]


PART = Part(
    name="batches",
    title="A line of a batch",
    text=(
        f"Batches of {FULL_LINES:,} new chats of one token on the bundled model, from the upload to"
        " the end: the time for each line, less that of the engine's steps. In each round as many"
        f" chats go by bare gRPC calls, {LINES_AT_ONCE} at once like the lines:"
        " `bench/results/batches.json` says how much of the time is the frontend's."
    ),
    measure=measure,
    conclude=conclude,
)
