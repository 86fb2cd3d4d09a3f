"""Starts what is measured, with the command lines that count, and stops it again.

Corral and its peers get the same model, slots, context and threads; everything else is what each
does by itself, apart from llama-server's layouts, of which the best for a load counts.
"""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.paths import REPOSITORY
from bench.processes import cpu_seconds

MODEL_NAME = "bench"
START_TIMEOUT_S = 300.0  # two minutes were not enough on a machine under load
STOP_TIMEOUT_S = 20.0


class ServerFailed(Exception):
    """A server did not come up; its last lines say why."""


@dataclass(frozen=True)
class EngineShape:
    """What every engine is given."""

    model: Path
    slots: int
    context_tokens: int  # of one slot
    threads: int


@dataclass(frozen=True)
class Server:
    """A server that answers HTTP, and the processes it is made of."""

    name: str
    url: str
    processes: Mapping[str, int]  # process ids by role
    command_lines: tuple[str, ...]
    grpc_target: str = ""

    def cpu_seconds(self) -> dict[str, float]:
        """Return the processor time used so far by each role and its child processes."""
        found: dict[str, float] = {}
        for role, pid in self.processes.items():
            for name, seconds in cpu_seconds(role, pid).items():
                found[name] = found.get(name, 0.0) + seconds
        return found


# Where every prompt is new, a cache could only cost llama-server time.
_NO_CACHE = ("--no-cache-prompt", "--cache-ram", "0")
_CACHE = ("--cache-prompt", "--cache-reuse", "64", "--cache-ram", "8192")
LAYOUTS = {
    "streams": ("--no-kv-unified", *_NO_CACHE),
    "unified": ("--kv-unified", *_NO_CACHE),
    "streams, cache": ("--no-kv-unified", *_CACHE),
    "unified, cache": ("--kv-unified", *_CACHE),
}
NEW_PROMPTS = ("streams", "unified")
SHARED_PROMPTS = ("streams, cache", "unified, cache")  # without a cache: more work, no gain


def llama_server_command(binary: Path, shape: EngineShape, port: int, layout: str) -> list[str]:
    """Return llama-server's command line in one of its layouts."""
    return [
        *(str(binary), "--model", str(shape.model), "--alias", MODEL_NAME),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--parallel", str(shape.slots)),
        *("--ctx-size", str(shape.slots * shape.context_tokens)),
        *("--threads", str(shape.threads), "--threads-batch", str(shape.threads)),
        *LAYOUTS[layout],
    ]


def batched_bench_command(
    binary: Path,
    shape: EngineShape,
    prompt_tokens: int,
    output_tokens: int,
    rows: Sequence[int],
    *,
    shared_prompt: bool = False,
) -> list[str]:
    """Return llama-batched-bench's command line for decoding that many sequences at once, each
    after a prompt of its own or all after one."""
    # it warms up with 16 sequences whatever it is asked for, so 16 must be allowed
    levels = sorted({*rows, 16})
    context = max(shape.slots, 16) * shape.context_tokens
    return [
        *(str(binary), "--model", str(shape.model), "--no-kv-unified", "--ctx-size", str(context)),
        *("--threads", str(shape.threads), "--threads-batch", str(shape.threads)),
        *("-npp", str(prompt_tokens), "-ntg", str(output_tokens)),
        *("-npl", ",".join(map(str, levels)), "--output-format", "jsonl"),
        *(("-pps",) if shared_prompt else ()),
    ]


def corral_settings(
    shape: EngineShape, folder: Path, grpc_ports: Sequence[int], http_ports: Sequence[int]
) -> dict[str, str]:
    """Return the environment that makes Corral's two services equal to the peers."""
    return {
        "CORRAL_DATA_DIR": str(folder),
        "CORRAL_INFERENCE_LISTEN": f"127.0.0.1:{grpc_ports[0]}",
        "CORRAL_INFERENCE_MANAGEMENT_LISTEN": f"127.0.0.1:{grpc_ports[1]}",
        "CORRAL_INFERENCE_MODELS": f'["{MODEL_NAME}={shape.model}"]',
        "CORRAL_INFERENCE_ENGINE__SLOTS": str(shape.slots),
        "CORRAL_INFERENCE_ENGINE__CONTEXT_TOKENS": str(shape.context_tokens),
        "CORRAL_INFERENCE_ENGINE__THREADS": str(shape.threads),
        # Random weights repeat themselves, which drafts gain from as no trained model lets them.
        "CORRAL_INFERENCE_ENGINE__DRAFT_TOKENS": "0",
        "CORRAL_GATEWAY_LISTEN": f"127.0.0.1:{http_ports[0]}",
        "CORRAL_GATEWAY_MANAGEMENT_LISTEN": f"127.0.0.1:{http_ports[1]}",
        "CORRAL_GATEWAY_INFERENCE_TARGET": f"127.0.0.1:{grpc_ports[0]}",
    }


@contextmanager
def corral(
    shape: EngineShape, folder: Path, further: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run Corral's inference service and gateway with `further` settings; logs go into the
    folder."""
    ports = free_ports(4)
    settings = corral_settings(shape, folder / "data", ports[:2], ports[2:]) | dict(further or {})
    url = f"http://127.0.0.1:{ports[2]}"
    with ExitStack() as stack:
        started = {
            role: stack.enter_context(
                _running([sys.executable, "-m", module], folder / f"{module}.log", settings)
            )
            for role, module in (("frontend", "inference_svc"), ("gateway", "gateway"))
        }
        _wait_until_ready(f"{url}/ready", *started.values())
        yield Server(
            name="corral",
            url=url,
            processes={role: child.process.pid for role, child in started.items()},
            command_lines=(
                "python -m inference_svc & python -m gateway &, both with",
                *(f"{name}={value}" for name, value in settings.items()),
            ),
            grpc_target=f"127.0.0.1:{ports[0]}",
        )


@contextmanager
def control(folder: Path, name: str, further: Mapping[str, str]) -> Iterator[Server]:
    """Run Corral's control service with `further` settings; its data and log go into the folder."""
    grpc_port, http_port = free_ports(2)
    settings = {
        "CORRAL_CONTROL_LISTEN": f"127.0.0.1:{grpc_port}",
        "CORRAL_CONTROL_MANAGEMENT_LISTEN": f"127.0.0.1:{http_port}",
        "CORRAL_CONTROL_DATA_DIR": str(folder / name),
        "CORRAL_CONTROL_LOG_LEVEL": "warning",
        **further,
    }
    command = [sys.executable, "-m", "control_svc"]
    with _running(command, folder / f"{name}.log", settings) as child:
        url = f"http://127.0.0.1:{http_port}"
        _wait_until_ready(f"{url}/readyz", child)
        lines = (
            "python -m control_svc, with",
            *(f"{key}={value}" for key, value in settings.items()),
        )
        yield Server(name, url, {name: child.process.pid}, lines, f"127.0.0.1:{grpc_port}")


@contextmanager
def bare_stream(folder: Path) -> Iterator[Server]:
    """Run the server that does nothing but hash a stream; its callers wait until it is ready."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "bench.bare_stream", str(port)]
    with _running(command, folder / "bare-stream.log", {}) as child:
        name, line = "bare stream", f"python -m bench.bare_stream {port}"
        yield Server(name, "", {name: child.process.pid}, (line,), f"127.0.0.1:{port}")


@contextmanager
def llama_server(binary: Path, shape: EngineShape, folder: Path, layout: str) -> Iterator[Server]:
    """Run llama-server in one of its layouts; its log goes into the folder."""
    (port,) = free_ports(1)
    command = llama_server_command(binary, shape, port, layout)
    url, name = f"http://127.0.0.1:{port}", f"llama-server {layout}"
    with _running(
        command, folder / f"{name.replace(', ', '-').replace(' ', '-')}.log", {}
    ) as child:
        _wait_until_ready(f"{url}/health", child)
        pid = child.process.pid
        yield Server(name, url, {"llama-server": pid}, (shlex.join(command),))


def free_ports(count: int) -> list[int]:
    """Return loopback ports that nothing listens on right now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@dataclass(frozen=True)
class _Child:
    command: str
    process: subprocess.Popen[bytes]
    log: Path

    def failure(self, problem: str) -> ServerFailed:
        last_lines = self.log.read_text(errors="replace").splitlines()[-8:]
        return ServerFailed("\n  ".join([f"{problem}: {self.command}", *last_lines]))


@contextmanager
def _running(command: Sequence[str], log: Path, settings: dict[str, str]) -> Iterator[_Child]:
    # settings of the user's own installation would change what is measured
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("CORRAL_", "LLAMA_"))}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=REPOSITORY,
            env=inherited | settings,
            start_new_session=True,
        )
    try:
        yield _Child(shlex.join(command), process, log)
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_ready(url: str, *children: _Child) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        for child in children:
            if child.process.poll() is not None:
                raise child.failure(f"exit code {child.process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310  # our own loopback URL
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    raise children[0].failure(f"not ready after {START_TIMEOUT_S:.0f} s")
