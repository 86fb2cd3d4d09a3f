"""What the engine's process holds beside weights and KV cache.

llama.cpp keeps weights as mapped pages of the file, and those that the kernels want in another
order as a copy too. The first are counted in the engine's process; how large the copies are it says
when it loads a model, so a process loads the weights alone and its log is read.
"""

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import operators
from bench.measurement import CORRAL, Measurement, Part, Result
from bench.processes import mapped_bytes, resident_bytes
from bench.stage import Stage
from bench.workload import SAMPLINGS, Workload
from inference_svc.models.description import describe_model

SLOTS, CONTEXT_TOKENS = 16, 1024
ALLOWED_MB = 200.0
LOAD = f"{SLOTS} slots x {CONTEXT_TOKENS:,} tokens"
MB = 1e6
LOAD_ALONE = """
import sys, llama_cpp
parameters = llama_cpp.llama_model_default_params()
assert llama_cpp.llama_model_load_from_file(sys.argv[1].encode(), parameters)
"""
BUFFER = re.compile(r"(\S+) model buffer size = *([0-9.]+) MiB")


def measure(stage: Stage) -> Iterator[Measurement]:
    """Fill every slot once, then look at the engine's process."""
    kv = describe_model(stage.model, "bench").kv_bytes_per_token * SLOTS * CONTEXT_TOKENS
    copies = _copies_bytes(stage.model)
    with stage.corral(stage.shape(SLOTS, CONTEXT_TOKENS)) as server:
        prompt = stage.sizes(512, 64)  # fills the largest compute batch
        stage.http(server, Workload(SLOTS, SLOTS, prompt, 16, SAMPLINGS["sampled"]))
        engine = operators.server_info(server.grpc_target).engine_pid
        resident, weights = resident_bytes(engine), copies + mapped_bytes(engine, stage.model)
    figures = {"resident_mb": resident / MB, "weights_mb": weights / MB, "kv_mb": kv / MB}
    rounded = {name: round(value, 1) for name, value in figures.items()}
    yield Measurement(LOAD, 0, CORRAL, (resident - weights - kv) / MB, rounded)


def _copies_bytes(model: Path) -> int:
    command = [sys.executable, "-c", LOAD_ALONE, str(model)]
    ran = subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True, errors="replace")
    return copies_bytes(ran.stderr)


def copies_bytes(log: str) -> int:
    """Return the sum of the buffers that llama.cpp says it made for weights, beside the file."""
    sizes = [float(mib) for kind, mib in BUFFER.findall(log) if not kind.endswith("_Mapped")]
    return round(sum(sizes) * 2**20)


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """The rest beside what is allowed."""
    return [
        Result(
            one.load,
            (one.value / ALLOWED_MB,),
            1.0,
            one.value,
            ALLOWED_MB,
            "allowed",
            unit="MB",
            bound="at most",
        )
        for one in measurements
    ]


PART = Part(
    name="memory",
    title="Memory of the engine",
    text=(
        f"Resident memory of the engine's process after all {SLOTS} slots were busy, without the "
        "weights (mapped pages of the file, and llama.cpp's copies of them) and the KV cache of "
        f"{LOAD}. The interpreter, its libraries, the vocabulary and all compute buffers are in it."
    ),
    measure=measure,
    conclude=conclude,
)
