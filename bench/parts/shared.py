"""Many requests with one system prompt over HTTP, compared with `llama-server` and with a computed
limit: the speed of llama.cpp if every distinct prompt token is computed exactly once."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.contest import Contest, Turn, run_rounds
from bench.measurement import Measurement, Result, compare, load_names
from bench.servers import SHARED_PROMPTS, EngineShape
from bench.stage import Batched, Part, Stage
from bench.workload import SAMPLINGS, Workload

LIMIT = "limit"


class Sizes(NamedTuple):
    """Numbers of requests and lengths in tokens."""

    prefixes: tuple[int, ...]
    own_tokens: int
    output_tokens: int
    requests: int
    concurrency: int
    context_tokens: int  # of a slot
    rounds: int


FULL = Sizes((800, 1600), 16, 32, requests=32, concurrency=16, context_tokens=1792, rounds=3)
QUICK = Sizes((200, 400), 16, 8, requests=16, concurrency=16, context_tokens=2048, rounds=1)


def measure(stage: Stage) -> Iterator[Measurement]:
    """Measure all systems, alternating, with a new system prompt in each round."""
    sizes = stage.sizes(FULL, QUICK)
    shape = stage.shape(sizes.concurrency, sizes.context_tokens)
    with stage.corral(shape) as corral, stage.llama_servers(shape, SHARED_PROMPTS) as peers:
        contests = []
        for prefix in sizes.prefixes:
            load, workload = _load(prefix), _workload(sizes, prefix)
            contests.append(
                Contest(
                    stage.throughput_turn(load, corral, workload),
                    {peer.name: stage.throughput_turn(load, peer, workload) for peer in peers},
                    {LIMIT: _limit_turn(stage, shape, sizes, prefix)} if stage.peers else None,
                )
            )
        yield from run_rounds(contests, stage.rounds or sizes.rounds)


def _workload(sizes: Sizes, prefix: int) -> Workload:
    return Workload(
        requests=sizes.requests,
        concurrency=sizes.concurrency,
        prompt_tokens=sizes.own_tokens,
        output_tokens=sizes.output_tokens,
        sampling=SAMPLINGS["sampled"],
        seed=prefix,
        shared_prefix_tokens=prefix,
    )


def _limit_turn(stage: Stage, shape: EngineShape, sizes: Sizes, prefix: int) -> Turn:
    def turn(number: int) -> Measurement:
        rows = (1, sizes.concurrency)
        speeds = stage.batched_bench(shape, prefix, sizes.output_tokens, rows, shared_prompt=True)
        alone, together = speeds[1], speeds[sizes.concurrency]
        figures = {"prefill_tokens_per_s": alone.prefill, "decode_tokens_per_s": together.decode}
        rate = limit(sizes, prefix, Batched(alone.prefill, together.decode))
        return Measurement(_load(prefix), number, LIMIT, rate, figures)

    return turn


def limit(sizes: Sizes, prefix: int, rates: Batched) -> float:
    """Return the output tokens per second if the prefix and each request's own tokens are computed
    once at these rates.
    """
    outputs = sizes.requests * sizes.output_tokens
    prompts = prefix + sizes.requests * sizes.own_tokens
    return outputs / (prompts / rates.prefill + outputs / rates.decode)


def _load(prefix: int) -> str:
    return f"{prefix:,} shared tokens"


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare Corral with the limit and with llama-server."""
    short, long = load_names(measurements)
    return [
        compare(measurements, short, LIMIT, 0.85),
        compare(measurements, short, "llama-server", 3.0),
        compare(measurements, long, "llama-server", 5.0),
    ]


PART = Part(
    name="shared",
    title="One system prompt, HTTP beside llama-server",
    text=(
        f"{FULL.requests} requests over one system prompt, {FULL.own_tokens} own tokens each, "
        f"{FULL.output_tokens} out, {FULL.concurrency} at once, sampled; every round has a new "
        "system prompt. The limit is computed from llama-batched-bench's rates at that context: "
        "the shared tokens once, each request's own tokens once, and all outputs decoded "
        f"{FULL.concurrency} at once."
    ),
    measure=measure,
    conclude=conclude,
)
