"""Engines of others: the stand-in of the tests, and vLLM, also without a server.

vLLM serves a model in the shape of 0.5 B parameters with the bundled model's tokenizer. Its weights
are its own dummies, so its text is noise.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.paths import BUNDLED_MODEL, REPOSITORY
from bench.processes import cpu_seconds
from bench.random_model import SHAPES
from bench.servers import (
    MODEL_NAME,
    EngineShape,
    Server,
    ServerFailed,
    free_ports,
    running,
    wait_until_ready,
)
from tools.demo_model.export_hf import export_tokenizer

VLLM: Final = REPOSITORY / ".venv-engine-vllm/bin/python"
"""Where `make test-engines` installs it."""
STAND_IN: Final = "stand-in"


class BatchTimes(NamedTuple):
    """What a batch took: seconds, and those of the processors by process."""

    seconds: float
    cpu_s: dict[str, float]


RunBatch = Callable[[Sequence[str]], BatchTimes]


def spent(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """The processor seconds of each process between two measurements."""
    return {role: round(after[role] - before.get(role, 0.0), 2) for role in after}


def find_vllm() -> Path | None:
    """Return the Python that has vLLM, that of CORRAL_VLLM or of `make test-engines`."""
    python = Path(os.environ.get("CORRAL_VLLM") or VLLM)
    return python if python.is_file() else None


@contextmanager
def stand_in(folder: Path, step_s: float) -> Iterator[Server]:
    """Run an engine that writes words without end, in steps of `step_s` seconds."""
    (port,) = free_ports(1)
    module = ["-m", "tests.support.engine_stand_in", "llama_server"]
    command = [sys.executable, *module, str(port), str(step_s)]
    url = f"http://127.0.0.1:{port}"
    with running(command, folder / "stand-in.log", {}) as child:
        wait_until_ready(f"{url}/health", child)
        line = shlex.join(["python", *command[1:]])
        yield Server(STAND_IN, url, {STAND_IN: child.process.pid}, (line,))


@contextmanager
def vllm(
    python: Path, shape: EngineShape, folder: Path, dtype: str = "float32"
) -> Iterator[Server]:
    """Run vLLM's server; `folder` gets its log."""
    (port,) = free_ports(1)
    engine = vllm_engine(shape, dtype)
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in engine]
    server = ["-m", "vllm.entrypoints.openai.api_server", "--host=127.0.0.1", f"--port={port}"]
    options = ["--enforce-eager", f"--served-model-name={MODEL_NAME}", "--no-enable-log-requests"]
    command = [str(python), *server, *arguments, *options]
    url = f"http://127.0.0.1:{port}"
    with running(command, folder / "vllm.log", vllm_environment(shape)) as child:
        wait_until_ready(f"{url}/health", child)
        yield Server("vllm", url, {"vllm": child.process.pid}, (shlex.join(command),))


@contextmanager
def vllm_batch(
    python: Path, shape: EngineShape, folder: Path, output_tokens: int
) -> Iterator[RunBatch]:
    """Start vLLM's own `LLM`, whose `generate` is called for the texts of each batch."""
    engine: dict[str, Any] = dict(vllm_engine(shape)) | {"enforce_eager": True}
    program = REPOSITORY / "bench/vllm_batch.py"
    command = [str(python), str(program), json.dumps(engine), str(output_tokens)]
    environment = {**os.environ, **vllm_environment(shape)}
    with (
        (folder / "vllm-batch.log").open("w") as log,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,  # as each server, since Linux divides cores among sessions
        ) as process,
    ):
        _read_answer(process)

        def run(prompts: Sequence[str]) -> BatchTimes:
            before = cpu_seconds("vllm", process.pid)
            print(json.dumps(prompts), file=process.stdin, flush=True)
            seconds = _read_answer(process)["seconds"]
            after = cpu_seconds("vllm", process.pid)
            return BatchTimes(seconds, spent(before, after))

        yield run


def count_steps(engine: Server) -> float:
    """Return how many steps vLLM's server has computed."""
    with urllib.request.urlopen(f"{engine.url}/metrics") as answer:  # noqa: S310  # loopback
        text = answer.read().decode()
    found = re.findall(r"^vllm:iteration_tokens_total_count\S* (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


def _read_answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    for line in process.stdout or ():
        if line.startswith('{"'):  # vLLM logs to the same output
            answer: dict[str, Any] = json.loads(line)
            return answer
    raise ServerFailed(f"vLLM's own batch has ended with code {process.wait()}")


def vllm_engine(shape: EngineShape, dtype: str = "float32") -> list[tuple[str, Any]]:
    """The arguments of both of vLLM's engines."""
    return [
        ("model", str(shape.model)),
        ("load_format", "dummy"),
        ("dtype", dtype),
        ("max_model_len", shape.context_tokens),
        ("max_num_seqs", shape.slots),
    ]


def vllm_environment(shape: EngineShape) -> dict[str, str]:
    """The environment of both."""
    return {
        "PYTHONPATH": "",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(shape.threads),
        "TORCHDYNAMO_DISABLE": "1",  # else the first sampled request compiles for minutes
    }


def write_vllm_model(folder: Path) -> Path:
    """Write a model without weights for vLLM, and return its folder."""
    half = SHAPES["half"]
    export_tokenizer(BUNDLED_MODEL, folder)
    config = json.loads((folder / "config.json").read_text())
    sizes: Mapping[str, int] = {
        "hidden_size": half.width,
        "num_hidden_layers": half.layers,
        "num_attention_heads": half.heads,
        "num_key_value_heads": half.kv_heads,
        "head_dim": half.width // half.heads,
        "intermediate_size": half.ffn_width,
    }
    (folder / "config.json").write_text(json.dumps(config | sizes))
    return folder
