"""Starts and stops the measured servers.

Corral and its peers get the same model, slots, context and threads, and keep their other defaults.
llama-server is measured in several layouts, of which the fastest is compared.
"""

import json
import os
import secrets
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

from bench.measurement import CORRAL
from bench.paths import REPOSITORY
from bench.processes import cpu_seconds

MODEL_NAME = "bench"
BEFORE = "before"
"""The name of a server of another checkout."""
START_TIMEOUT_S = 300.0  # 120 s were too short on a loaded machine
STOP_TIMEOUT_S = 20.0


class ServerFailed(Exception):
    """A server did not become ready. The message ends with its last log lines."""


@dataclass(frozen=True)
class EngineShape:
    """Settings shared by all engines."""

    model: Path
    slots: int
    context_tokens: int  # of one slot
    threads: int
    projector: Path | None = None


@dataclass(frozen=True)
class Server:
    """Addresses and processes of a running server."""

    name: str
    url: str
    processes: Mapping[str, int]  # process ids by role
    command_lines: tuple[str, ...]
    grpc_target: str = ""

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time so far of each role and of its child processes."""
        totals: dict[str, float] = {}
        for role, pid in self.processes.items():
            for name, seconds in cpu_seconds(role, pid).items():
                totals[name] = totals.get(name, 0.0) + seconds
        return totals


# With unique prompts a cache would only slow llama-server down.
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
    """Return the command line of llama-server in this layout."""
    return [
        *(str(binary), "--model", str(shape.model), "--alias", MODEL_NAME),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--parallel", str(shape.slots)),
        *("--ctx-size", str(shape.slots * shape.context_tokens)),
        *("--threads", str(shape.threads), "--threads-batch", str(shape.threads)),
        *(("--mmproj", str(shape.projector)) if shape.projector else ()),
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
    """Return the command line of llama-batched-bench for each number of sequences in `rows`.

    Each sequence has its own prompt, or all share one.
    """
    # llama-batched-bench always warms up with 16 sequences.
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
    """Return the environment that gives Corral's services the same settings as the peers."""
    per_model = {MODEL_NAME: {"projector": str(shape.projector)}} if shape.projector else {}
    return {
        "CORRAL_INFERENCE_PER_MODEL": json.dumps(per_model),
        "CORRAL_DATA_DIR": str(folder),
        "CORRAL_INFERENCE_LISTEN": f"127.0.0.1:{grpc_ports[0]}",
        "CORRAL_INFERENCE_MANAGEMENT_LISTEN": f"127.0.0.1:{grpc_ports[1]}",
        "CORRAL_INFERENCE_MODELS": f'["{MODEL_NAME}={shape.model}"]',
        "CORRAL_INFERENCE_ENGINE__SLOTS": str(shape.slots),
        "CORRAL_INFERENCE_ENGINE__CONTEXT_TOKENS": str(shape.context_tokens),
        "CORRAL_INFERENCE_ENGINE__THREADS": str(shape.threads),
        # Random weights produce repetitive text, for which drafts gain more than in practice.
        "CORRAL_INFERENCE_ENGINE__DRAFT_TOKENS": "0",
        "CORRAL_GATEWAY_LISTEN": f"127.0.0.1:{http_ports[0]}",
        "CORRAL_GATEWAY_MANAGEMENT_LISTEN": f"127.0.0.1:{http_ports[1]}",
        "CORRAL_GATEWAY_INFERENCE_TARGET": f"127.0.0.1:{grpc_ports[0]}",
    }


def upstream_settings(engine: Server, tokenizer: Path, slots: int) -> dict[str, str]:
    """Return the settings with which Corral serves the model of an engine, and no other."""
    limits = {"concurrency": slots, "batch_ahead": slots}
    upstream = {"urls": [engine.url], "tokenizer": str(tokenizer), **limits}
    return {
        "CORRAL_INFERENCE_MODELS": "[]",
        "CORRAL_INFERENCE_UPSTREAMS": json.dumps({MODEL_NAME: upstream}),
    }


@contextmanager
def corral(
    shape: EngineShape,
    folder: Path,
    extra_settings: Mapping[str, str] | None = None,
    inference: str = "inference_svc",
    checkout: Path = REPOSITORY,
) -> Iterator[Server]:
    """Run Corral's gateway and inference service (the module `inference`) with `extra_settings`.
    `folder` gets the logs. Another `checkout` is run by its own `.venv`, as the server BEFORE."""
    python, name = sys.executable, CORRAL
    if checkout != REPOSITORY:
        python, name = str(checkout.resolve() / ".venv/bin/python"), BEFORE
        folder /= BEFORE
    ports = free_ports(4)
    settings = corral_settings(shape, folder / "data", ports[:2], ports[2:])
    settings |= {**shared_token(folder), **(extra_settings or {})}
    url = f"http://127.0.0.1:{ports[2]}"
    with ExitStack() as stack:
        started = {
            role: stack.enter_context(
                running([python, "-m", module], folder / f"{module}.log", settings, checkout)
            )
            for role, module in (("frontend", inference), ("gateway", "gateway"))
        }
        wait_until_ready(f"{url}/ready", *started.values())
        yield Server(
            name=name,
            url=url,
            processes={role: child.process.pid for role, child in started.items()},
            command_lines=(
                f"python -m {inference} & python -m gateway &, both with",
                *(f"{name}={value}" for name, value in settings.items()),
            ),
            grpc_target=f"127.0.0.1:{ports[0]}",
        )


def shared_token(folder: Path) -> dict[str, str]:
    """Settings with a token that the services share, as those of `corral up` do: the gateway's
    callers keep their projects in the inference service."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "service-token"
    path.touch(mode=0o600)
    path.write_text(secrets.token_urlsafe(32))
    return {
        f"CORRAL_{service}_SERVICE_TOKEN_FILE": str(path) for service in ("GATEWAY", "INFERENCE")
    }


@contextmanager
def control(folder: Path, name: str, extra_settings: Mapping[str, str]) -> Iterator[Server]:
    """Run Corral's control service with `extra_settings`. `folder` gets its data and log."""
    grpc_port, http_port = free_ports(2)
    settings = {
        "CORRAL_CONTROL_LISTEN": f"127.0.0.1:{grpc_port}",
        "CORRAL_CONTROL_MANAGEMENT_LISTEN": f"127.0.0.1:{http_port}",
        "CORRAL_CONTROL_DATA_DIR": str(folder / name),
        "CORRAL_CONTROL_LOG_LEVEL": "warning",
        **extra_settings,
    }
    command = [sys.executable, "-m", "control_svc"]
    with running(command, folder / f"{name}.log", settings) as child:
        url = f"http://127.0.0.1:{http_port}"
        wait_until_ready(f"{url}/readyz", child)
        lines = (
            "python -m control_svc, with",
            *(f"{key}={value}" for key, value in settings.items()),
        )
        yield Server(name, url, {name: child.process.pid}, lines, f"127.0.0.1:{grpc_port}")


@contextmanager
def bare_stream(folder: Path) -> Iterator[Server]:
    """Run the server of `bench.bare_stream`. Callers wait until it is ready."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "bench.bare_stream", str(port)]
    with running(command, folder / "bare-stream.log", {}) as child:
        name, line = "bare stream", f"python -m bench.bare_stream {port}"
        yield Server(name, "", {name: child.process.pid}, (line,), f"127.0.0.1:{port}")


@contextmanager
def llama_server(
    binary: Path, shape: EngineShape, folder: Path, layout: str, options: Sequence[str] = ()
) -> Iterator[Server]:
    """Run llama-server in this layout, with more `options`. `folder` gets its log."""
    (port,) = free_ports(1)
    command = [*llama_server_command(binary, shape, port, layout), *options]
    url, name = f"http://127.0.0.1:{port}", f"llama-server {layout}"
    with running(command, folder / f"{name.replace(', ', '-').replace(' ', '-')}.log", {}) as child:
        wait_until_ready(f"{url}/health", child)
        pid = child.process.pid
        yield Server(name, url, {"llama-server": pid}, (shlex.join(command),))


def free_ports(count: int) -> list[int]:
    """Return loopback ports that are free now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@dataclass(frozen=True)
class Child:
    """A process that was started, and the file of its output."""

    command: str
    process: subprocess.Popen[bytes]
    log: Path

    def failure(self, problem: str) -> ServerFailed:
        """Return the error with the last lines of the output."""
        last_lines = self.log.read_text(errors="replace").splitlines()[-8:]
        return ServerFailed("\n  ".join([f"{problem}: {self.command}", *last_lines]))


@contextmanager
def running(
    command: Sequence[str], log: Path, settings: Mapping[str, str], folder: Path = REPOSITORY
) -> Iterator[Child]:
    """Run a command in a folder with these variables of the environment."""
    # Settings of the user's installation must not affect the measurement.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("CORRAL_", "LLAMA_"))}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**inherited, **settings},
            start_new_session=True,
        )
    try:
        yield Child(shlex.join(command), process, log)
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until_served(server: Server) -> None:
    """Wait until the model answers: an engine of others is probed first. Raises ServerFailed."""
    body = json.dumps({"model": MODEL_NAME, "prompt": "a", "max_tokens": 1}).encode()
    headers = {"Content-Type": "application/json"}
    url = f"{server.url}/v1/completions"
    wait_until_ready(urllib.request.Request(url, body, headers))  # noqa: S310  # our own URL


def wait_until_ready(url: str | urllib.request.Request, *children: Child) -> None:
    """Wait until the URL answers with success. Raises ServerFailed."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        for child in children:
            if child.process.poll() is not None:
                raise child.failure(f"the server exited with code {child.process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=30):  # noqa: S310  # our own loopback URL
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    problem = f"the server was not ready after {START_TIMEOUT_S:.0f} s"
    raise children[0].failure(problem) if children else ServerFailed(problem)
