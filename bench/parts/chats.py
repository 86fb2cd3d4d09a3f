"""What a small chat costs the gateway, beside another checkout of Corral."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final, NamedTuple

from bench.contest import alternate
from bench.measurement import Measurement, Result, compare, load_names
from bench.paths import BUNDLED_MODEL
from bench.servers import BEFORE, EngineShape, Server
from bench.stage import Part, Stage
from bench.streams import LoadFigures
from bench.workload import SAMPLINGS, Workload

CALLERS: Final = (1, 16)
ALLOWED: Final = 1.05
COST, FIRST_TOKEN = "processor time of the gateway", "first token"
UNITS: Final = {COST: "us", FIRST_TOKEN: "ms"}
SHAPE: Final = EngineShape(BUNDLED_MODEL, slots=16, context_tokens=1024, threads=1)


class Sizes(NamedTuple):
    """Chats of each load, and rounds."""

    chats: int
    rounds: int


FULL, QUICK = Sizes(400, 7), Sizes(32, 1)


def measure(stage: Stage) -> Iterator[Measurement]:
    """Send small chats, one after the other and sixteen at once."""
    sizes = stage.sizes(FULL, QUICK)
    with ExitStack() as stack:
        servers = [stack.enter_context(stage.corral(SHAPE))]
        if stage.against:
            servers.append(stack.enter_context(stage.corral(SHAPE, checkout=stage.against)))
        for number in range(stage.rounds or sizes.rounds):
            for callers in CALLERS:
                for server in alternate(servers, number):
                    yield from chat_costs(stage, server, sizes.chats, callers, number)


def chat_costs(
    stage: Stage, server: Server, chats: int, callers: int, number: int
) -> Iterator[Measurement]:
    """Measure the gateway's processor time for a chat, and the median time to its first token."""
    workload = Workload(chats, callers, 16, 4, SAMPLINGS["greedy"]).in_round(number)
    result = stage.run_http_load(server, workload, chat=True)
    figures = LoadFigures.from_streams(result.streams)
    values = {
        COST: 1e6 * result.cpu_s["gateway"] / chats,
        FIRST_TOKEN: figures.first_token_p50_ms,
    }
    for name, value in values.items():
        load = f"{callers} at once, {name}"
        yield Measurement(load, number, server.name, value, figures.to_json(), result.cpu_s)


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare both checkouts in each round."""
    results = []
    for load in load_names(measurements):
        unit = UNITS[load.partition(", ")[2]]
        compared = compare(measurements, load, BEFORE, ALLOWED, unit=unit)
        results.append(replace(compared, bound="at most"))
    return results


PART = Part(
    name="chats",
    title="A small chat's cost to the gateway",
    text=(
        "The gateway's processor time for a streamed chat of four tokens on the bundled model, and"
        f" the median time to its first token: {FULL.chats} chats one after the other, and as many"
        f" {CALLERS[1]} at once. `--against FOLDER` measures another checkout in turns with this"
        " one, each with its own virtual environment."
    ),
    measure=measure,
    conclude=conclude,
)
