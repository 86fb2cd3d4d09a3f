"""Decoding with idle slots, compared with `llama-server`. llama.cpp computes some numbers of rows,
and rows with gaps between them, at half its speed."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.contest import Contest, Turn, run_rounds
from bench.measurement import CORRAL, Measurement, Result, compare, load_names
from bench.servers import NEW_PROMPTS, Server
from bench.stage import Part, Stage
from bench.streams import LoadFigures, decode_rate
from bench.workload import SAMPLINGS, Workload

SLOTS = 16
HOLES = "16 slots, every second idle"


class Sizes(NamedTuple):
    """Numbers of sequences, and lengths in tokens."""

    sequences: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    overlap: float
    rounds: int


FULL = Sizes((3, 5, 7, 11, 15), prompt_tokens=32, output_tokens=96, overlap=0.5, rounds=5)
QUICK = Sizes((3, 15), prompt_tokens=8, output_tokens=96, overlap=0.0, rounds=1)


def measure(stage: Stage) -> Iterator[Measurement]:
    """Measure Corral over gRPC and llama-server's layouts over HTTP, alternating."""
    sizes = stage.sizes(FULL, QUICK)
    shape = stage.shape(SLOTS, context_tokens=512)
    with stage.corral(shape) as corral, stage.llama_servers(shape, NEW_PROMPTS) as peers:
        contests = [
            Contest(
                _turn(stage, load, corral, workload, sizes),
                {peer.name: _turn(stage, load, peer, workload, sizes) for peer in peers},
            )
            for load, workload in _workloads(sizes)
        ]
        yield from run_rounds(contests, stage.rounds or sizes.rounds)


def _workloads(sizes: Sizes) -> Iterator[tuple[str, Workload]]:
    def workload(count: int, *, brief: int = 0) -> Workload:
        return Workload(
            requests=count,
            concurrency=count,
            prompt_tokens=sizes.prompt_tokens,
            output_tokens=sizes.output_tokens,
            sampling=SAMPLINGS["sampled"],
            seed=count,
            brief_tokens=brief,
            pinned=bool(brief),
            counted=True,
        )

    for count in sizes.sequences:
        yield f"{count} at once", workload(count)
    # Every second request ends early, so that every second slot becomes idle.
    yield HOLES, workload(SLOTS, brief=sizes.output_tokens // 4)


def _turn(stage: Stage, load: str, server: Server, workload: Workload, sizes: Sizes) -> Turn:
    def turn(number: int) -> Measurement:
        request = workload.in_round(number)
        run_load = stage.run_grpc_load if server.name == CORRAL else stage.run_http_load
        result = run_load(server, request)
        whole = [s for s in result.streams if s.completion_tokens == request.output_tokens]
        after = max((s.ended for s in result.streams if s not in whole), default=0.0)
        return Measurement(
            *(load, number, server.name, decode_rate(whole, sizes.overlap, after)),
            figures=LoadFigures.from_streams(whole).to_json(),
            cpu_s=result.cpu_s,
        )

    return turn


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare Corral with the fastest layout of llama-server."""
    return [compare(measurements, load, "llama-server", 1.0) for load in load_names(measurements)]


PART = Part(
    name="uneven",
    title="Decoding with idle slots, beside llama-server",
    text=(
        f"{SLOTS} slots of which some are busy, {FULL.prompt_tokens} tokens in, "
        f"{FULL.output_tokens} out, sampled. For holes, sixteen requests take a slot each, in "
        "order, and every second one ends after a quarter; only what comes later counts. Corral "
        "through gRPC, llama-server through HTTP; only the time in which all go on counts."
    ),
    measure=measure,
    conclude=conclude,
)
