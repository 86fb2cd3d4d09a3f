"""Unique prompts over HTTP, compared with `llama-server`."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.contest import Contest, run_rounds
from bench.measurement import Measurement, Result, compare, load_names
from bench.servers import NEW_PROMPTS
from bench.stage import Part, Stage
from bench.workload import SAMPLINGS, Workload

WITHOUT_REUSE = "corral without reuse"
REUSE_LOAD = "16 at once"


class Sizes(NamedTuple):
    """Size of a closed-loop load."""

    concurrency: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    least_requests: int
    requests_per_caller: int
    rounds: int


FULL = Sizes((1, 4, 16), 128, 64, least_requests=12, requests_per_caller=3, rounds=5)
QUICK = Sizes((1, 4, 16), 16, 8, least_requests=2, requests_per_caller=1, rounds=1)


def measure(stage: Stage) -> Iterator[Measurement]:
    """Measure all systems, alternating; at the highest concurrency also Corral without reuse."""
    sizes = stage.sizes(FULL, QUICK)
    shape = stage.shape(slots=16, context_tokens=512)
    with stage.corral(shape) as corral, stage.llama_servers(shape, NEW_PROMPTS) as peers:
        contests = []
        for concurrency in sizes.concurrency:
            load, workload = f"{concurrency} at once", _workload(sizes, concurrency)
            unshared = _workload(sizes, concurrency, reuse=False)
            beside = {WITHOUT_REUSE: stage.throughput_turn(load, corral, unshared, WITHOUT_REUSE)}
            contests.append(
                Contest(
                    stage.throughput_turn(load, corral, workload),
                    {peer.name: stage.throughput_turn(load, peer, workload) for peer in peers},
                    beside if load == REUSE_LOAD else None,
                )
            )
        yield from run_rounds(contests, stage.rounds or sizes.rounds)


def _workload(sizes: Sizes, concurrency: int, *, reuse: bool = True) -> Workload:
    return Workload(
        requests=max(sizes.least_requests, sizes.requests_per_caller * concurrency),
        concurrency=concurrency,
        prompt_tokens=sizes.prompt_tokens,
        output_tokens=sizes.output_tokens,
        sampling=SAMPLINGS["sampled"],
        seed=concurrency if reuse else concurrency + 500,
        reuse=reuse,
    )


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare Corral with the fastest layout of llama-server, and with itself without reuse."""
    peers = [compare(measurements, load, "llama-server", 1.0) for load in load_names(measurements)]
    label = f"{REUSE_LOAD}, prefixes shared or not"
    return [*peers, compare(measurements, REUSE_LOAD, WITHOUT_REUSE, 0.98, label)]


PART = Part(
    name="unique",
    title="Unique prompts, HTTP beside llama-server",
    text=(
        f"`POST /v1/completions`, streamed: {FULL.prompt_tokens} tokens in, {FULL.output_tokens} "
        "out, sampled, as many callers as said, each waiting for its answer. The last line is "
        "what looking for shared prefixes costs where there are none."
    ),
    measure=measure,
    conclude=conclude,
)
