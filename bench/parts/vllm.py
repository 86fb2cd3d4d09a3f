"""Corral's own engine beside vLLM's for the CPU, at equal precision."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from bench import engines, paths
from bench.contest import Contest, run_rounds
from bench.measurement import Measurement, Result, compare, load_names
from bench.random_model import ensure_bf16_model
from bench.servers import NEW_PROMPTS, EngineShape
from bench.stage import Part, Stage
from bench.workload import SAMPLINGS, Workload

VLLM: Final = "vllm"
UNIQUE: Final = "unique prompts"
LLAMA_SERVER: Final = "llama-server"


class Sizes(NamedTuple):
    """Numbers of streams, and lengths in tokens: of unique prompts, of the prompt that others
    share and what each of them adds, and of outputs."""

    concurrency: tuple[int, ...]
    unique: int
    shared: int
    own: int
    output_tokens: int
    rounds: int


FULL = Sizes((16, 32), 128, 800, 16, output_tokens=32, rounds=3)
QUICK = Sizes((2,), 16, 32, 8, output_tokens=4, rounds=1)


def measure(stage: Stage) -> Iterator[Measurement]:
    """Measure all systems, alternating, if vLLM is there."""
    if stage.vllm is None or stage.peers is None:
        return
    sizes = stage.sizes(FULL, QUICK)
    model = ensure_bf16_model("half", paths.cache_folder(), stage.peers)
    context = sizes.shared + sizes.own + sizes.output_tokens + 64
    shape = EngineShape(model, max(sizes.concurrency), context, stage.threads)
    vllm_shape = replace(shape, model=engines.write_vllm_model(stage.folder / "model"))
    starting = engines.vllm(stage.vllm, vllm_shape, stage.folder, "bfloat16")
    with (
        stage.corral(shape) as corral,
        stage.llama_servers(shape, NEW_PROMPTS[:1]) as (llama_server,),
        stage.engine(starting) as vllm,
    ):
        contests = []
        for load, workload in _loads(sizes).items():
            peers = [vllm] if workload.shared_prefix_tokens else [vllm, llama_server]
            turns = {each.name: stage.throughput_turn(load, each, workload) for each in peers}
            contests.append(Contest(stage.throughput_turn(load, corral, workload), {}, turns))
        yield from run_rounds(contests, stage.rounds or sizes.rounds)


def _loads(sizes: Sizes) -> dict[str, Workload]:
    loads = {}
    for concurrency in sizes.concurrency:
        unique = Workload(
            requests=concurrency,
            concurrency=concurrency,
            prompt_tokens=sizes.unique,
            output_tokens=sizes.output_tokens,
            sampling=SAMPLINGS["greedy"],
            seed=concurrency,
            as_ids=True,
        )
        shared = replace(unique, prompt_tokens=sizes.own, shared_prefix_tokens=sizes.shared)
        loads[f"{UNIQUE}, {concurrency} at once"] = unique
        loads[f"one prompt of {sizes.shared}, {concurrency} at once"] = shared
    return loads


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare with vLLM, and with llama-server, which computes with the same kernels as Corral."""
    names = load_names(measurements)
    beside_vllm = [compare(measurements, load, VLLM, 1.0) for load in names]
    unique = [load for load in names if load.startswith(UNIQUE)]
    return [
        *beside_vllm,
        *(compare(measurements, load, LLAMA_SERVER, 1.0, f"{load}, kernels") for load in unique),
    ]


PART = Part(
    name="vllm",
    title="Beside vLLM for the CPU, in BF16",
    text=(
        "`POST /v1/completions`, streamed, greedily (vLLM 0.32 for the CPU ends on a seed beside a"
        " prompt that it computes in parts): random weights in BF16, in the shape of 0.5 B"
        f" parameters with the bundled model's small vocabulary; {FULL.unique} tokens in and"
        f" {FULL.output_tokens} out, or {FULL.own} after a prompt of {FULL.shared} that all of a"
        " round share. vLLM without compilation (`--enforce-eager`), as TorchDynamo would take"
        " minutes to begin."
    ),
    measure=measure,
    conclude=conclude,
)
