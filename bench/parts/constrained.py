"""Cost of a constrained token, and time saved by computing forced tokens in one batch."""

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.contest import alternate
from bench.engine_runs import EngineRuns, RunResult, engine_runs
from bench.measurement import Measurement, Result, load_names, median, values_by_round
from bench.paths import SCHEMAS
from bench.stage import Part, Stage
from inference_svc.structured_output.spec import OutputFormat, OutputFormatKind

FREE, BOUND = "free", "constrained"
SINGLE, TOGETHER = "forced tokens one by one", "forced tokens together"
# These grammars never force a token, so both systems compute the same number of tokens.
COST_FORMS = {
    "any text": OutputFormat(OutputFormatKind.REGEX, "(?s:.*)", "regex"),
    "a long array": OutputFormat(
        OutputFormatKind.JSON_SCHEMA,
        json.dumps({"type": "array", "minItems": 999, "items": {"type": ["string", "integer"]}}),
        "schema",
    ),
}
MOST_COST, LEAST_SAVING = 1.05, 1.5


class Sizes(NamedTuple):
    """Concurrency levels and lengths in tokens."""

    counts: tuple[int, ...]
    cost_tokens: int
    answer_tokens: int  # limit; every schema ends well below it
    rounds: int


FULL = Sizes((1, 8), cost_tokens=64, answer_tokens=480, rounds=7)
QUICK = Sizes((1, 8), cost_tokens=12, answer_tokens=480, rounds=1)


def measure(stage: Stage) -> Iterator[Measurement]:
    """Measure free and constrained sequences, then answers with and without forced tokens."""
    sizes = stage.sizes(FULL, QUICK)
    with engine_runs(
        stage.model, slots=max(sizes.counts), context_tokens=512, threads=stage.threads
    ) as runs:
        yield from _costs(runs, sizes, stage.rounds or sizes.rounds)
        yield from _savings(runs, sizes, stage.rounds or sizes.rounds)


def _costs(runs: EngineRuns, sizes: Sizes, rounds: int) -> Iterator[Measurement]:
    for name, form in COST_FORMS.items():
        constraint = runs.constraint(form)
        for count in sizes.counts:
            # Builds the masks of the grammar before the measured runs.
            runs.run(constraint, count=count, tokens=8, seed=99, force_tokens=False)
            for number in range(rounds):
                for system in alternate((FREE, BOUND), number):
                    result = runs.run(
                        constraint if system == BOUND else None,
                        count=count,
                        tokens=sizes.cost_tokens,
                        seed=number,
                        force_tokens=False,
                    )
                    token_ms = 1e3 * result.wall_s / result.tokens
                    load = f"{name}, {count} at once"
                    yield Measurement(load, number, system, token_ms, _figures(result))


def _savings(runs: EngineRuns, sizes: Sizes, rounds: int) -> Iterator[Measurement]:
    for path in SCHEMAS:
        constraint = runs.constraint(
            OutputFormat(OutputFormatKind.JSON_SCHEMA, path.read_text(), "schema")
        )
        runs.run(constraint, count=1, tokens=sizes.answer_tokens, seed=99, force_tokens=True)
        for number in range(rounds):
            for system in alternate((SINGLE, TOGETHER), number):
                result = runs.run(
                    constraint,
                    count=1,
                    tokens=sizes.answer_tokens,
                    seed=number,
                    force_tokens=system == TOGETHER,
                )
                figures = _figures(result) | {"is_valid": _is_json(result.texts[0])}
                yield Measurement(path.stem, number, system, 1e3 * result.wall_s, figures)


def _figures(result: RunResult) -> dict[str, float]:
    return {"tokens": result.tokens, "cpu_ms": round(1e3 * result.cpu_s, 3)}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare constrained with free tokens, forced tokens one by one with forced tokens together,
    and the number of valid JSON answers.
    """
    schemas = [path.stem for path in SCHEMAS]
    results = [
        _times(measurements, load, BOUND, FREE, MOST_COST)
        for load in load_names(measurements)
        if load not in schemas
    ]
    results += [_times(measurements, load, SINGLE, TOGETHER, LEAST_SAVING) for load in schemas]
    return [*results, _validity(measurements, schemas)]


def _times(
    measurements: Sequence[Measurement], load: str, own: str, other: str, target: float
) -> Result:
    slower, faster = (values_by_round(measurements, load, system) for system in (own, other))
    return Result(
        load if own == BOUND else f"{load}, {own}",
        tuple(value / faster[n] for n, value in slower.items() if n in faster),
        target,
        median([*slower.values()]),
        median([*faster.values()]),
        f"{other}, a token" if own == BOUND else other,
        unit="ms",
        bound="at most" if own == BOUND else "at least",
    )


def _validity(measurements: Sequence[Measurement], schemas: Sequence[str]) -> Result:
    answers = [m for m in measurements if m.load in schemas]
    valid = {
        system: sum(m.figures["is_valid"] for m in answers if m.system == system)
        for system in (TOGETHER, SINGLE)
    }
    return Result(
        "answers that are JSON",
        (valid[TOGETHER] / valid[SINGLE],) if valid[SINGLE] else (),
        1.0,
        valid[TOGETHER],
        valid[SINGLE],
        SINGLE,
        unit=f"of {len(answers) // 2}",
    )


PART = Part(
    name="constrained",
    title="Constrained output",
    text=(
        "On the engine itself, in one process, sampled. Cost: a token of sequences under a grammar "
        "that forces nothing, beside free sequences of the same length. Saving: the time until a "
        "whole answer after each of `bench/schemas/`, with forced tokens computed one by one "
        "beside the same with forced tokens computed together."
    ),
    measure=measure,
    conclude=conclude,
)
