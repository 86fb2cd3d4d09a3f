"""What it costs a gateway to choose the replica of a call."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

from bench import loadgen
from bench.contest import alternate
from bench.measurement import CORRAL, Measurement, Result, load_names, median, values_by_round
from bench.paths import BUNDLED_MODEL
from bench.processes import cpu_seconds
from bench.replicas import Replicas, paced_replicas
from bench.servers import MODEL_NAME, EngineShape
from bench.stage import Part, Stage
from bench.step_times import StepTimes
from bench.workload import SAMPLINGS, Workload

CALLERS: Final = 8
ENGINE: Final = EngineShape(BUNDLED_MODEL, CALLERS, context_tokens=512, threads=1)
TARGETS: Final = "{count} x target"


class Sizes(NamedTuple):
    """Targets of a gateway, calls of each measurement, and rounds."""

    counts: tuple[int, ...]
    calls: int
    rounds: int


FULL, QUICK = Sizes((1, 2, 4), 600, 7), Sizes((1, 2), 20, 1)


def measure(stage: Stage) -> Iterator[Measurement]:
    """Alternate between gateways with different numbers of targets."""
    sizes = stage.sizes(FULL, QUICK)
    with ExitStack() as stack:
        gateways = {
            count: stack.enter_context(
                paced_replicas(
                    count, ENGINE, StepTimes(0.0), stage.folder / f"{count}", num_gateways=1
                )
            )
            for count in sizes.counts
        }
        for number in range(stage.rounds or sizes.rounds):
            for count, replicas in alternate([*gateways.items()], number):
                yield _cost_of_a_call(stage, sizes, replicas, count, number)


def _cost_of_a_call(
    stage: Stage, sizes: Sizes, replicas: Replicas, count: int, number: int
) -> Measurement:
    """Microseconds of the gateway's processor time for a call of one token."""
    load = Workload(
        requests=sizes.calls,
        concurrency=CALLERS,
        prompt_tokens=8,
        output_tokens=1,
        sampling=SAMPLINGS["greedy"],
    )
    role, pid = "gateway 0", replicas.processes["gateway 0"]
    before = cpu_seconds(role, pid)[role]
    stage.runner.run(loadgen.run_load(replicas.urls[0], load.in_round(number), MODEL_NAME))
    cost = 1e6 * (cpu_seconds(role, pid)[role] - before) / sizes.calls
    return Measurement(TARGETS.format(count=count), number, CORRAL, cost)


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare with one target."""
    values = {
        name: values_by_round(measurements, name, CORRAL) for name in load_names(measurements)
    }
    one = values[TARGETS.format(count=1)]
    return [
        Result(
            name,
            tuple(value / one[number] for number, value in own.items()),
            None,
            median([*own.values()]),
            median([*one.values()]),
            "one target",
            "µs of processor time a call",
            "at most",
        )
        for name, own in values.items()
    ]


PART = Part(
    name="routing",
    title="Choosing a replica",
    text=(
        "The processor time of a gateway for a call of one token at `/v1/completions`, each with a"
        " prompt of its own, from"
        f" {CALLERS} callers: with one target, and with several, among which gRPC's ring hash"
        " chooses the home of each prompt while weighted round robin and the health of all of"
        " them are kept up."
    ),
    measure=measure,
    conclude=conclude,
)
