"""What a streamed chat token costs frontend and gateway, if each is a message of its own."""

from collections.abc import Iterator, Sequence

from bench.measurement import CORRAL, Measurement, Result, median, values_by_round
from bench.paths import BUNDLED_MODEL
from bench.servers import EngineShape, Server
from bench.stage import Part, Stage
from bench.workload import SAMPLINGS, Workload

ALLOWED_US = {1: 1200.0, 4: 600.0, 16: 400.0}
"""By the number of streams: the tokens of a step wake each process once."""
TOKENS, QUICK_TOKENS, ROUNDS = 400, 40, 5
SHAPE = EngineShape(BUNDLED_MODEL, slots=16, context_tokens=1024, threads=1)
SETTINGS = {"CORRAL_INFERENCE_ENGINE__STREAM_INTERVAL_MS": "0"}


def measure(stage: Stage) -> Iterator[Measurement]:
    """Stream chats through the gateway, from an engine that takes 25 ms for a step."""
    with stage.corral(SHAPE, SETTINGS, inference="bench.paced_engine") as server:
        for number in range(stage.rounds or stage.sizes(ROUNDS, 1)):
            for streams in ALLOWED_US:
                yield token_cost(stage, server, streams, number)


def token_cost(stage: Stage, server: Server, streams: int, number: int) -> Measurement:
    """Measure the processor time of frontend and gateway in microseconds for each token."""
    workload = Workload(
        requests=streams,
        concurrency=streams,
        prompt_tokens=16,
        output_tokens=stage.sizes(TOKENS, QUICK_TOKENS),
        sampling=SAMPLINGS["greedy"],
    ).in_round(number)
    result = stage.run_http_load(server, workload, chat=True)
    num_tokens = sum(stream.completion_tokens for stream in result.streams)
    num_messages = sum(len(stream.arrivals) for stream in result.streams)
    cost = {role: 1e6 * result.cpu_s[role] / num_tokens for role in ("frontend", "gateway")}
    figures = {f"{role}_us": round(us, 1) for role, us in cost.items()}
    return Measurement(
        *(_load(streams), number, CORRAL, sum(cost.values())),
        figures=figures | {"messages_per_token": round(num_messages / num_tokens, 3)},
        cpu_s=result.cpu_s,
    )


def _load(streams: int) -> str:
    return f"{streams} at once"


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare the cost of a token with the allowed one."""
    results = []
    for streams, allowed_us in ALLOWED_US.items():
        values = values_by_round(measurements, _load(streams), CORRAL).values()
        ratios = tuple(value / allowed_us for value in values)
        own = median([*values])
        results.append(
            Result(_load(streams), ratios, 1.0, own, allowed_us, "allowed", "us", "at most")
        )
    return results


PART = Part(
    name="tokens",
    title="A streamed chat token",
    text=(
        f"The processor time of frontend and gateway for a token, in chats of {TOKENS} tokens that"
        " are streamed over HTTP. The bundled model, slowed down to 25 ms a step, sends every token"
        " by itself; the engine's own time is not counted. `bench/results/tokens.json` has the"
        " figures of each process."
    ),
    measure=measure,
    conclude=conclude,
)
