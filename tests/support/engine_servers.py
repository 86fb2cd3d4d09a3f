"""Engines that `make test-engines` found, each started with the bundled model on a free port.

`CORRAL_LLAMA_SERVER` is the program, and `CORRAL_VLLM` the Python that has vLLM; either may also be
the URL of an engine that runs with the bundled model. Tests with an engine whose variable is not
set are skipped. `STAND_IN` is always there.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import httpx
import pytest

from inference_svc.models.sources import BUNDLED_PATH
from tests.support.processes import Program
from tests.support.rpc import PARIS
from tools.corral_server import free_address
from tools.demo_model.export_hf import export

VARIABLES: Final = {"llama_server": "CORRAL_LLAMA_SERVER", "vllm": "CORRAL_VLLM"}
EMBEDDING_VARIABLES: Final = {f"{kind}_embeddings": name for kind, name in VARIABLES.items()}
"""Engines that embed with the bundled model, by the vector of its last token."""
_ALL_VARIABLES: Final = {**VARIABLES, **EMBEDDING_VARIABLES}
PROGRAMS: Final = {kind: os.environ.get(name, "") for kind, name in _ALL_VARIABLES.items()}
STAND_IN: Final = "stand_in"
"""One that speaks as llama-server, and always writes `PARIS`."""
CONTEXT_TOKENS: Final = 1024
SLOTS: Final = 2
MAX_QUEUED: Final = 2
"""Requests that wait in vLLM before it refuses others."""
_START_PATIENCE_S: Final = 900.0
"""vLLM imports PyTorch in several processes before it listens."""
_RETRIES: Final = 6
"""Of a connection, with pauses that grow to 16 s: vLLM says that it is ready before it listens."""
_STEP_S: Final = 0.02
_ENVIRONMENT: Final = {
    "PYTHONPATH": "",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # else the first sampled request compiles for minutes
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
}


@dataclass(frozen=True)
class RunningEngine:
    """An engine. `tokenizer` is where Corral finds its vocabulary; `program` is None if it was
    there before."""

    kind: str
    url: str
    tokenizer: str
    program: Program | None


class EngineCommand(NamedTuple):
    """How an engine is started: `ready` is in the line that it prints before it listens."""

    arguments: list[str]
    ready: str
    tokenizer: str
    environment: Mapping[str, str] = _ENVIRONMENT

    def start(self, folder: Path) -> Program:
        """Start it in a folder; `wait` returns when it listens."""
        return Program(self.arguments, environment=self.environment, directory=folder)

    def wait(self, program: Program, url: str) -> None:
        """Wait until it listens. Raises ProgramFailed."""
        program.wait_for_line(self.ready, patience_s=_START_PATIENCE_S)
        with httpx.Client(transport=httpx.HTTPTransport(retries=_RETRIES)) as client:
            client.get(f"{url}/health")


def engine_command(kind: str, folder: Path, address: str) -> EngineCommand:
    """How an engine is started at an address; `folder` gets what it reads."""
    program = sys.executable if kind == STAND_IN else PROGRAMS[kind]
    return _COMMANDS[kind](program, folder, address.rpartition(":")[2])


@contextmanager
def run_real_engine(kind: str, folder: Path, *options: str) -> Iterator[RunningEngine]:
    """Run an engine, with further options; `folder` gets what it reads. Leaving stops it."""
    program = PROGRAMS[kind]
    if not program:
        pytest.skip(f"{kind} is not installed ({_ALL_VARIABLES[kind]})")
    if program.startswith("http"):
        yield RunningEngine(kind, program, "bundled", None)
        return
    address = free_address()
    command = engine_command(kind, folder, address)
    command.arguments.extend(options)
    with command.start(folder) as started:
        url = f"http://{address}"
        command.wait(started, url)
        yield RunningEngine(kind, url, command.tokenizer, started)


def _stand_in(program: str, folder: Path, port: str) -> EngineCommand:
    module = [program, "-m", "tests.support.engine_stand_in", "llama_server"]
    return EngineCommand([*module, port, str(_STEP_S), PARIS], "listening on", "bundled", {})


def _llama_server(program: str, folder: Path, port: str) -> EngineCommand:
    options = ["--host", "127.0.0.1", "--port", port, "--threads", "1", "--alias", "demo"]
    sizes = ["--ctx-size", str(SLOTS * CONTEXT_TOKENS), "--parallel", str(SLOTS), "--slots"]
    command = [program, "--model", str(BUNDLED_PATH), *options, *sizes, "--no-warmup"]
    return EngineCommand(command, "listening on http", "bundled")


def _vllm(program: str, folder: Path, port: str) -> EngineCommand:
    model = folder / "demo-chat"
    if not model.is_dir():
        export(BUNDLED_PATH, model)
    server = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    options = ["--host", "127.0.0.1", "--port", port, "--served-model-name", "demo"]
    sizes = ["--max-model-len", str(CONTEXT_TOKENS), "--max-num-seqs", str(SLOTS)]
    queue = ["--max-num-queued-reqs", str(MAX_QUEUED)]
    constraints = ["--structured-outputs-config.backend", "guidance"]
    exact = ["--dtype", "float32", "--enforce-eager", "--enable-prompt-tokens-details"]
    command = [program, *server, *options, *sizes, *queue, *constraints, *exact]
    return EngineCommand(command, "Application startup complete", str(model))


def _with(
    *options: str, start: Callable[[str, Path, str], EngineCommand]
) -> Callable[[str, Path, str], EngineCommand]:
    def command(program: str, folder: Path, port: str) -> EngineCommand:
        usual = start(program, folder, port)
        return usual._replace(arguments=[*usual.arguments, *options])

    return command


_COMMANDS: Final[Mapping[str, Callable[[str, Path, str], EngineCommand]]] = {
    STAND_IN: _stand_in,
    "llama_server": _llama_server,
    "llama_server_embeddings": _with("--embeddings", "--pooling", "last", start=_llama_server),
    "vllm": _vllm,
    "vllm_embeddings": _with("--runner", "pooling", "--convert", "embed", start=_vllm),
}
