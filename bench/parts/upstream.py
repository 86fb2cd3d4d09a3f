"""What it costs to have Corral in front of an engine of others."""

import asyncio
import time
from collections import ChainMap
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx

from bench import engines, servers
from bench.batch_load import LINES_AT_ONCE, run_batch
from bench.contest import Contest, Turn, alternate, run_rounds
from bench.engines import BatchTimes
from bench.measurement import (
    CORRAL,
    Measurement,
    Result,
    compare,
    load_names,
    median,
    values_by_round,
)
from bench.paced_engine import DEFAULT
from bench.parts import tokens
from bench.paths import BUNDLED_MODEL
from bench.servers import MODEL_NAME, NEW_PROMPTS, EngineShape, Server
from bench.stage import Part, Stage
from bench.streams import LoadFigures
from bench.workload import SAMPLINGS, Workload

STREAMS = 16
ALLOWED_US = 60.0
TOKENS, QUICK_TOKENS = 1500, 100
FULL_SPEED, PACED = f"{STREAMS} streams at full speed", f"{STREAMS} streams, 25 ms a step"
TARGET_SPEED, TARGET_FIRST_TOKEN, TARGET_BATCH = 0.97, 1.05, 0.95
OWN_ENGINE = "own engine"
GRPC, BATCH, COMPLETIONS = "corral, gRPC", "a batch", "/v1/completions"
VLLM_BATCH, VLLM_WHOLE = "vllm LLM.generate", "vllm, whole answers"


class Sizes(NamedTuple):
    """Sizes of the loads beside real engines."""

    concurrency: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    requests_per_caller: int
    batch_lines: int
    rounds: int
    batch_rounds: int


FULL = Sizes((1, 16), 128, 32, 2, batch_lines=1000, rounds=5, batch_rounds=3)
QUICK = Sizes((1, 16), 16, 8, 1, batch_lines=20, rounds=1, batch_rounds=1)

BATCH_TOKENS = 16
"""Of a line of a batch, in and out."""
_ANSWER_S = 600.0


def measure(stage: Stage) -> Iterator[Measurement]:
    """Measure the adapter alone, then beside llama-server."""
    sizes = stage.sizes(FULL, QUICK)
    yield from _adapter_costs(stage, stage.rounds or sizes.rounds)
    shape = stage.shape(slots=STREAMS, context_tokens=1024)
    if stage.peers is not None:
        program = stage.peers / "llama-server"
        starting = servers.llama_server(program, shape, stage.folder, NEW_PROMPTS[0])
        yield from _beside(stage, starting, shape, "llama-server", stage.model)


def measure_vllm(stage: Stage) -> Iterator[Measurement]:
    """Measure beside vLLM, if it is there."""
    if stage.vllm is not None:
        model = engines.write_vllm_model(stage.folder / "model")
        shape = EngineShape(model, STREAMS, 1024, stage.threads)
        starting = engines.vllm(stage.vllm, shape, stage.folder)
        yield from _beside(stage, starting, shape, "vllm", model)


# --- the adapter ----------------------------------------------------------------------------------


def _adapter_costs(stage: Stage, rounds: int) -> Iterator[Measurement]:
    """Measure the frontend's processor time for a token, in microseconds: over an engine that
    writes as fast as it can, and over one and Corral's own with the same steps."""
    shape = EngineShape(BUNDLED_MODEL, STREAMS, 2048, threads=1)
    with ExitStack() as stack:

        def over_stand_in(step_s: float) -> Server:
            apart = replace(stage, folder=stage.folder / f"step-{step_s}")
            engine = stack.enter_context(engines.stand_in(apart.folder, step_s))
            settings = servers.upstream_settings(engine, BUNDLED_MODEL, STREAMS)
            return stack.enter_context(apart.corral(shape, settings))

        own = stage.corral(shape, tokens.SETTINGS, inference="bench.paced_engine")
        systems = {
            (FULL_SPEED, CORRAL): over_stand_in(0.0),
            (PACED, CORRAL): over_stand_in(DEFAULT.call_s),
            (PACED, OWN_ENGINE): stack.enter_context(own),
        }
        for number in range(rounds):
            for (load, system), server in alternate([*systems.items()], number):
                yield _frontend_cost(stage, server, load, system, number)


def _frontend_cost(
    stage: Stage, server: Server, load: str, system: str, number: int
) -> Measurement:
    workload = Workload(
        requests=STREAMS,
        concurrency=STREAMS,
        prompt_tokens=16,
        output_tokens=stage.sizes(TOKENS, QUICK_TOKENS),
        sampling=SAMPLINGS["greedy"],
    )
    result = stage.run_grpc_load(server, workload.in_round(number))
    num_tokens = sum(stream.completion_tokens for stream in result.streams)
    num_messages = sum(len(stream.arrivals) for stream in result.streams)
    figures = {"messages_per_token": round(num_messages / num_tokens, 3)}
    cost = 1e6 * result.cpu_s["frontend"] / num_tokens
    return Measurement(load, number, system, cost, figures, result.cpu_s)


# --- beside an engine -----------------------------------------------------------------------------


def _beside(
    stage: Stage,
    starting: AbstractContextManager[Server],
    shape: EngineShape,
    name: str,
    tokenizer: Path,
) -> Iterator[Measurement]:
    """Alternate between Corral and the engine that it asks, with the same requests."""
    sizes = stage.sizes(FULL, QUICK)
    rounds = stage.rounds or sizes.rounds
    with stage.engine(starting) as engine:
        settings = servers.upstream_settings(engine, tokenizer, STREAMS)
        with stage.corral(shape, settings) as corral:
            contests = []
            for concurrency in sizes.concurrency:
                load = f"{name}, {concurrency} at once"
                # Prompts of its own for each: engines keep the prefixes of what they were sent.
                first, second, third = (_workload(sizes, concurrency, seed) for seed in range(3))
                own = stage.throughput_turn(load, corral, first)
                direct = stage.throughput_turn(load, engine, second, name)
                grpc = _grpc_turn(stage, load, corral, third)
                contests.append(Contest(own, {}, {name: direct, GRPC: grpc}))
            yield from run_rounds(contests, rounds)
            if stage.vllm is not None and name == "vllm":
                yield from _batches(stage, stage.vllm, engine, corral, shape)


def _grpc_turn(stage: Stage, load: str, corral: Server, workload: Workload) -> Turn:
    def turn(number: int) -> Measurement:
        result = stage.run_grpc_load(corral, workload.in_round(number))
        figures = LoadFigures.from_streams(result.streams)
        speed = figures.tokens_per_s
        return Measurement(load, number, GRPC, speed, figures.to_json(), result.cpu_s)

    return turn


def _workload(sizes: Sizes, concurrency: int, seed: int) -> Workload:
    return Workload(
        requests=max(8, sizes.requests_per_caller * concurrency),
        concurrency=concurrency,
        prompt_tokens=sizes.prompt_tokens,
        output_tokens=sizes.output_tokens,
        sampling=SAMPLINGS["sampled"],
        seed=100 * seed + concurrency,
        as_ids=True,
    )


# --- batches --------------------------------------------------------------------------------------


def _batches(
    stage: Stage, python: Path, engine: Server, corral: Server, shape: EngineShape
) -> Iterator[Measurement]:
    """Alternate between a batch over vLLM, vLLM's own, and a client that asks vLLM without streams,
    with the same number of prompts."""
    sizes = stage.sizes(FULL, QUICK)
    beside = {"CORRAL_CONTROL_INFERENCE_TARGET": corral.grpc_target}
    with (
        stage.control("control", beside) as control,
        engines.vllm_batch(python, shape, stage.folder, BATCH_TOKENS) as run_vllm_batch,
    ):
        for number in range(stage.rounds or sizes.batch_rounds):
            # Prompts of its own for each that asks the same engine, which keeps their prefixes.
            prompts, others = (_batch_prompts(sizes, 2 * number + each) for each in range(2))
            turns = {
                CORRAL: partial(_own_batch, stage, (engine, corral, control), prompts),
                VLLM_BATCH: partial(run_vllm_batch, prompts),
                VLLM_WHOLE: partial(_whole_answers, stage, engine, others),
            }
            for system, turn in alternate([*turns.items()], number):
                steps, took = engines.count_steps(engine), turn()
                steps = (engines.count_steps(engine) - steps) / len(prompts)
                figures = {"steps_per_line": round(steps, 3)} if steps else {}
                speed = len(prompts) * BATCH_TOKENS / took.seconds
                yield Measurement(BATCH, number, system, speed, figures, took.cpu_s)


def _batch_prompts(sizes: Sizes, number: int) -> list[str]:
    load = Workload(sizes.batch_lines, 1, BATCH_TOKENS, BATCH_TOKENS, SAMPLINGS["greedy"])
    return load.in_round(number).text_prompts()


def _own_batch(stage: Stage, asked: Sequence[Server], prompts: Sequence[str]) -> BatchTimes:
    """Run a batch at the last of the servers that are `asked`."""
    fields = {"model": MODEL_NAME, "max_tokens": BATCH_TOKENS, "ignore_eos": True, "temperature": 0}
    bodies = [{**fields, "prompt": prompt} for prompt in prompts]
    return _run(stage, asked, run_batch(asked[-1].grpc_target, bodies, COMPLETIONS))


def _whole_answers(stage: Stage, engine: Server, prompts: Sequence[str]) -> BatchTimes:
    return _run(stage, [engine], _ask_all(engine.url, prompts))


def _run(stage: Stage, asked: Sequence[Server], load: Coroutine[Any, Any, None]) -> BatchTimes:
    before = ChainMap(*(server.cpu_seconds() for server in asked))
    started = time.perf_counter()
    stage.runner.run(load)
    seconds = time.perf_counter() - started
    after = ChainMap(*(server.cpu_seconds() for server in asked))
    return BatchTimes(seconds, engines.spent(before, after))


async def _ask_all(url: str, prompts: Sequence[str]) -> None:
    """Ask for whole answers, as many at once as a batch of Corral."""
    fields = {"model": MODEL_NAME, "max_tokens": BATCH_TOKENS, "ignore_eos": True, "temperature": 0}
    remaining = iter(prompts)
    async with httpx.AsyncClient(base_url=url, timeout=_ANSWER_S) as client:

        async def caller() -> None:
            for prompt in remaining:
                answer = await client.post(COMPLETIONS, json={**fields, "prompt": prompt})
                answer.raise_for_status()

        async with asyncio.TaskGroup() as group:
            for _ in range(LINES_AT_ONCE):
                group.create_task(caller())


# --- results --------------------------------------------------------------------------------------


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare the adapter with its allowed cost, and Corral with the engines."""
    results = []
    for load in load_names(measurements):
        if load == BATCH:
            results.append(compare(measurements, load, VLLM_BATCH, TARGET_BATCH))
            label = f"{load}, beside whole answers over HTTP"
            results.append(compare(measurements, load, VLLM_WHOLE, TARGET_BATCH, label))
        elif load in (FULL_SPEED, PACED):
            results.append(_adapter_result(measurements, load))
        else:
            peer = load.partition(",")[0]
            for system in (CORRAL, GRPC):
                label = f"{load}, {'HTTP' if system == CORRAL else 'gRPC'}"
                results += [
                    compare(measurements, load, peer, TARGET_SPEED, label, system=system),
                    _first_token_result(measurements, load, peer, system, label),
                ]
    return results


def _adapter_result(measurements: Sequence[Measurement], load: str) -> Result:
    """At full speed the whole cost of a token; else what it costs more than over the own engine,
    since each token is a message of its own, as it is there."""
    values = values_by_round(measurements, load, CORRAL)
    others = values_by_round(measurements, load, OWN_ENGINE)
    costs = [value - others.get(number, 0.0) for number, value in values.items()]
    ratios = tuple(cost / ALLOWED_US for cost in costs)
    label = f"{load}, more than over its own engine" if others else load
    return Result(label, ratios, 1.0, median(costs), ALLOWED_US, "allowed", "us", "at most")


def _first_token_result(
    measurements: Sequence[Measurement], load: str, peer: str, system: str, label: str
) -> Result:
    own, others = (
        {
            each.round: each.figures["first_token_p50_ms"]
            for each in measurements
            if (each.load, each.system) == (load, name)
        }
        for name in (system, peer)
    )
    return Result(
        f"{label}, first token",
        tuple(value / others[number] for number, value in own.items() if number in others),
        TARGET_FIRST_TOKEN,
        median([*own.values()]),
        median([*others.values()]),
        peer,
        "ms",
        "at most",
    )


_REQUESTS: Final = (
    f"`/v1/completions` with token ids, {FULL.prompt_tokens} in, {FULL.output_tokens} out, and the"
    " same over gRPC"
)
PART = Part(
    name="upstream",
    title="In front of an engine of others",
    text=(
        f"First the frontend's processor time for a token of `Generate`, {STREAMS} streams at once,"
        " over an engine that only writes events: all of it while that writes as fast as it can,"
        " and in steps of 25 ms what it is more than over Corral's own engine. Then Corral over"
        f" llama-server, beside a client that asks the same engine itself: {_REQUESTS}."
    ),
    measure=measure,
    conclude=conclude,
)
VLLM_PART = Part(
    name="upstream-vllm",
    title="In front of vLLM",
    text=(
        f"Corral over vLLM, beside a client that asks the same engine itself: {_REQUESTS}. Then a"
        f" batch of {FULL.batch_lines:,} lines of {BATCH_TOKENS}"
        " tokens in and out, beside vLLM's own `LLM.generate` of the same prompts, and beside a"
        f" client that asks vLLM's server without streams, {LINES_AT_ONCE} at once, which no batch"
        " over HTTP can surpass. vLLM's model has the shape of 0.5 B parameters, and dummy weights."
    ),
    measure=measure_vllm,
    conclude=conclude,
)
