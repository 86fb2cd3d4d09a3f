"""Memory of the engine process in addition to weights and KV cache.

llama.cpp copies weights, some of them repacked for its kernels, and logs the sizes of these buffers
when it loads a model: a separate process loads the weights, and its log is parsed. Pages of the
model file that are still mapped are counted in the engine process.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import operators
from bench.loadgen import exchange, read_stream
from bench.measurement import CORRAL, Measurement, Result
from bench.paths import SCHEMAS
from bench.processes import mapped_bytes, resident_bytes
from bench.servers import MODEL_NAME
from bench.stage import Part, Stage
from bench.workload import SAMPLINGS, Workload
from inference_svc.models.metadata import describe_model

SLOTS, CONTEXT_TOKENS = 16, 1024
CONSTRAINED_TOKENS = 96  # at most
ALLOWED_MB = 200.0
LOAD = f"{SLOTS} slots x {CONTEXT_TOKENS:,} tokens"
MB = 1e6
LOAD_ALONE = """
import sys, llama_cpp
parameters = llama_cpp.llama_model_default_params()
parameters.load_mode = llama_cpp.LLAMA_LOAD_MODE_NONE
assert llama_cpp.llama_model_load_from_file(sys.argv[1].encode(), parameters)
"""
BUFFER = re.compile(r"(\S+) model buffer size = *([0-9.]+) MiB")


def measure(stage: Stage) -> Iterator[Measurement]:
    """Use every slot and every schema once, then measure the engine process."""
    kv = describe_model(stage.model, "bench").kv_bytes_per_token * SLOTS * CONTEXT_TOKENS
    copies = _copies_bytes(stage.model)
    with stage.corral(stage.shape(SLOTS, CONTEXT_TOKENS)) as server:
        prompt = stage.sizes(512, 64)  # long enough for the largest compute batch
        stage.run_http_load(server, Workload(SLOTS, SLOTS, prompt, 16, SAMPLINGS["sampled"]))
        stage.runner.run(_constrained(server.url))
        kv += operators.get_load(
            server.grpc_target
        ).snapshot_bytes  # prefixes evicted from their slot
        engine = operators.get_server_info(server.grpc_target).engine_pid
        resident, weights = resident_bytes(engine), copies + mapped_bytes(engine, stage.model)
    figures = {"resident_mb": resident / MB, "weights_mb": weights / MB, "kv_mb": kv / MB}
    rounded = {name: round(value, 1) for name, value in figures.items()}
    yield Measurement(LOAD, 0, CORRAL, (resident - weights - kv) / MB, rounded)


async def _constrained(url: str) -> None:
    for path in SCHEMAS:
        form = {"name": path.stem, "schema": json.loads(path.read_text())}
        request = {
            "model": MODEL_NAME,
            "messages": [{"role": "user", "content": path.stem}],
            "response_format": {"type": "json_schema", "json_schema": form},
            "max_tokens": CONSTRAINED_TOKENS,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        read_stream(*await exchange(url, "/v1/chat/completions", json.dumps(request).encode()))


def _copies_bytes(model: Path) -> int:
    command = [sys.executable, "-c", LOAD_ALONE, str(model)]
    process = subprocess.run(
        command, check=True, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    return copies_bytes(process.stderr)


def copies_bytes(log: str) -> int:
    """Return the total size of weight buffers in a log of llama.cpp, without mapped files."""
    sizes = [float(mib) for kind, mib in BUFFER.findall(log) if not kind.endswith("_Mapped")]
    return round(sum(sizes) * 2**20)


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare the remaining memory with its limit."""
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
        f"Resident memory of the engine's process after all {SLOTS} slots were busy and each "
        f"schema in `bench/schemas` was followed, without the weights and the KV cache of {LOAD} "
        "with the prefixes that lost their slot. The interpreter, its libraries, the vocabulary "
        "and all compute buffers are in it."
    ),
    measure=measure,
    conclude=conclude,
)
