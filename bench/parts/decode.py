"""Decoding through gRPC beside `llama-batched-bench`, which neither samples nor serves."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.contest import alternate
from bench.measurement import CORRAL, Measurement, Result, compare, load_names
from bench.servers import Server
from bench.stage import Part, Stage
from bench.streams import LoadFigures, decode_rate
from bench.workload import SAMPLINGS, Sampling, Workload

PEER = "llama-batched-bench"
SLOTS, CONTEXT_TOKENS = 16, 512
TARGETS = {"greedy": 0.95, "sampled": 0.90}


class Sizes(NamedTuple):
    """Numbers of sequences, and lengths in tokens."""

    sequences: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    overlap: float  # minimum share of tokens generated while all sequences decoded
    rounds: int


FULL = Sizes((1, 4, 16), prompt_tokens=32, output_tokens=128, overlap=0.5, rounds=5)
QUICK = Sizes((1, 4, 16), prompt_tokens=8, output_tokens=96, overlap=0.0, rounds=1)


def measure(stage: Stage) -> Iterator[Measurement]:
    """Alternate between both systems. One run of the peer is compared with both samplings."""
    sizes = stage.sizes(FULL, QUICK)
    with stage.corral(stage.shape(SLOTS, CONTEXT_TOKENS)) as server:

        def own(number: int) -> list[Measurement]:
            return [
                _decode(stage, server, sizes, sampling, count, number)
                for sampling in SAMPLINGS.values()
                for count in sizes.sequences
            ]

        def peer(number: int) -> list[Measurement]:
            return _batched(stage, sizes, number)

        for number in range(stage.rounds or sizes.rounds):
            for turn in alternate((own, peer), number):
                yield from turn(number)


def _batched(stage: Stage, sizes: Sizes, number: int) -> list[Measurement]:
    shape = stage.shape(SLOTS, CONTEXT_TOKENS)
    reached = stage.batched_bench(shape, sizes.prompt_tokens, sizes.output_tokens, sizes.sequences)
    return [
        Measurement(_load(sampling, count), number, PEER, reached[count].decode)
        for sampling in SAMPLINGS.values()
        for count in sizes.sequences
        if count in reached
    ]


def _decode(
    stage: Stage, server: Server, sizes: Sizes, sampling: Sampling, count: int, number: int
) -> Measurement:
    workload = Workload(
        requests=count,
        concurrency=count,
        prompt_tokens=sizes.prompt_tokens,
        output_tokens=sizes.output_tokens,
        sampling=sampling,
        seed=number,
    )
    result = stage.run_grpc_load(server, workload)
    return Measurement(
        *(_load(sampling, count), number, CORRAL, decode_rate(result.streams, sizes.overlap)),
        figures=LoadFigures.from_streams(result.streams).to_json(),
        cpu_s=result.cpu_s,
    )


def _load(sampling: Sampling, count: int) -> str:
    return f"{sampling.name}, {count} at once"


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare Corral's decode speed with that of llama-batched-bench."""
    return [
        compare(measurements, load, PEER, TARGETS[load.partition(",")[0]])
        for load in load_names(measurements)
    ]


PART = Part(
    name="decode",
    title="Decoding, gRPC beside llama-batched-bench",
    text=(
        f"All sequences at once, {FULL.prompt_tokens} tokens in, {FULL.output_tokens} out, through "
        "`Generate` with token ids. Only the time in which all of them decode counts. The peer "
        "takes tokens at random and neither samples nor serves."
    ),
    measure=measure,
    conclude=conclude,
)
