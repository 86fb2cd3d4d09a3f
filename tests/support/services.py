"""Runs `corral up` and `corral serve` with small sizes and free ports."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import openai
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from tests.support.processes import PATIENCE_S, Program

CORRAL = Path(sys.executable).with_name("corral")
MODEL = "demo-chat"
LONG_CONTEXT = 16384
"""More tokens than any test generates, so a stream with `ignore_eos` runs until cancelled."""

Settings = Mapping[str, object]
"""Dotted names and values, as in {"engine.slots": 2}."""

TINY: Settings = {
    "engine.slots": 2,
    "engine.context_tokens": LONG_CONTEXT,
    "engine.threads": 1,
    "media.encoder_threads": 1,
    "engine.warm_up_s": 0,
    "management_listen": "127.0.0.1:0",
}
RESTART_RETRIES = 60
"""Retries of a client while a killed service restarts: one a second, on a busy machine."""

ANY_MANAGEMENT_PORT: Settings = {"management_listen": "127.0.0.1:0"}


@dataclass(frozen=True)
class Corral:
    """A running Corral: `url` of the gateway, `target` of the inference service, address of the
    control service."""

    program: Program
    url: str
    target: str
    control: str

    @property
    def api(self) -> str:
        """The base URL for SDKs."""
        return f"{self.url}/v1"

    @property
    def apis(self) -> Sequence[str]:
        """The base URLs of all gateways."""
        return [self.api]

    def sdk(self, api_key: str = "unused") -> openai.AsyncOpenAI:
        """The asynchronous client of the SDK without retries."""
        return openai.AsyncOpenAI(base_url=self.api, api_key=api_key, max_retries=0)


@dataclass(frozen=True)
class Inference:
    """A running inference service without a gateway."""

    program: Program
    target: str


def environment(
    data_dir: Path,
    inference: Settings | None = None,
    gateway: Settings | None = None,
    control: Settings | None = None,
) -> dict[str, str]:
    return {
        "CORRAL_DATA_DIR": str(data_dir),
        **_variables("CORRAL_INFERENCE_", {**TINY, **(inference or {})}),
        **_variables("CORRAL_CONTROL_", {**ANY_MANAGEMENT_PORT, **(control or {})}),
        **_variables("CORRAL_GATEWAY_", {**ANY_MANAGEMENT_PORT, **(gateway or {})}),
    }


def _variables(prefix: str, settings: Settings) -> dict[str, str]:
    return {
        prefix + name.upper().replace(".", "__"): value
        if isinstance(value, str)
        else json.dumps(value)
        for name, value in settings.items()
    }


def start(
    directory: Path,
    *arguments: str | Path,
    inference: Settings | None = None,
    gateway: Settings | None = None,
    control: Settings | None = None,
) -> Program:
    """Start the `corral` command with small sizes in a folder."""
    variables = environment(directory / "data", inference, gateway, control)
    return Program([CORRAL, *arguments], environment=variables, directory=directory)


@contextmanager
def corral_up(
    directory: Path,
    *flags: str | Path,
    inference: Settings | None = None,
    gateway: Settings | None = None,
    control: Settings | None = None,
) -> Iterator[Corral]:
    """Run `corral up` on free ports. Leaving stops it, and fails if a process is left."""
    ports = ["--port", "0"]
    for service in ("inference", "control"):
        ports += [f"--{service}-listen", "127.0.0.1:0"]
    settings = {"inference": inference, "gateway": gateway, "control": control}
    with start(directory, "up", *ports, *flags, **settings) as program:
        program.wait_for_line(r"Ctrl-C stops everything", stream="stdout")
        url = program.wait_for_line(r"OpenAI API +(https?://\S+)/v1", stream="stdout")[1]
        target = program.wait_for_line(r"gRPC +(\S+)", stream="stdout")[1]
        control_target = program.wait_for_line(r"(\S+) +\(files,", stream="stdout")[1]
        yield Corral(program, url, target, control_target)


@contextmanager
def run_inference(directory: Path, settings: Settings | None = None) -> Iterator[Inference]:
    """Run `corral serve inference` on a free port."""
    listening = {"listen": "127.0.0.1:0", **(settings or {})}
    with start(directory, "serve", "inference", inference=listening) as program:
        target = program.wait_for_line(r"serving gRPC on (\S+)")[1]
        wait_until_serving(target)
        yield Inference(program, target)


def wait_until_serving(target: str) -> None:
    with _health(target) as responses:
        _await(responses, health_pb2.HealthCheckResponse.SERVING)


@contextmanager
def expect_not_serving(target: str) -> Iterator[None]:
    """Wrap code that starts a drain. Leaving waits until health reports NOT_SERVING."""
    with _health(target) as responses:
        _await(responses, health_pb2.HealthCheckResponse.SERVING)
        yield
        _await(responses, health_pb2.HealthCheckResponse.NOT_SERVING)


@contextmanager
def expect_restart(target: str) -> Iterator[None]:
    """Wrap code that kills an engine. Leaving waits until health reports NOT_SERVING, then SERVING.
    Checking only for SERVING could succeed before the kill is noticed.
    """
    with _health(target) as responses:
        _await(responses, health_pb2.HealthCheckResponse.SERVING)
        yield
        _await(responses, health_pb2.HealthCheckResponse.NOT_SERVING)
        _await(responses, health_pb2.HealthCheckResponse.SERVING)


@contextmanager
def _health(target: str) -> Iterator[Iterator[health_pb2.HealthCheckResponse]]:
    with grpc.insecure_channel(target) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(), timeout=PATIENCE_S
        )
        yield watch
        watch.cancel()


def _await(responses: Iterator[health_pb2.HealthCheckResponse], status: int) -> None:
    while next(responses).status != status:
        pass
