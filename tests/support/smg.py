"""SMG, a router of others, in front of inference services, and the stub that routers use.

`CORRAL_SMG` is its program. Tests with it are skipped where the variable is not set.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2_grpc

from tests.support.processes import Program
from tools.corral_server import free_address

VARIABLE: Final = "CORRAL_SMG"
_PROGRAM: Final = os.environ.get(VARIABLE, "")
_ENVIRONMENT: Final = {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
"""It looks for a tokenizer with the model's name at Hugging Face, before it asks an engine."""


def vllm_stub(channel: grpc.Channel | grpc.aio.Channel) -> Any:
    """The stub of VllmEngine, which has no types."""
    make: Any = vllm_engine_pb2_grpc.VllmEngineStub
    return make(channel)


@contextmanager
def run_smg(targets: Sequence[str], folder: Path) -> Iterator[str]:
    """Run SMG in front of the gRPC services at these addresses, which get requests in turn. Yields
    its URL once it has a tokenizer; leaving stops it."""
    if not _PROGRAM:
        pytest.skip(f"SMG is not installed ({VARIABLE})")
    (host, _, port), metrics = free_address().rpartition(":"), free_address().rpartition(":")[2]
    command = [_PROGRAM, "launch", "--host", host, "--port", port, "--prometheus-host", host]
    command += ["--prometheus-port", metrics, "--policy", "round_robin", "--worker-urls"]
    command += [f"grpc://{target}" for target in targets]
    with Program(command, environment=_ENVIRONMENT, directory=folder) as started:
        started.wait_for_line("Successfully loaded tokenizer", stream="stdout")
        yield f"http://{host}:{port}"
