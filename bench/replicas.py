"""Several inference services with paced engines on loopback, and gateways before them."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.paced_engine import STEP_TIMES
from bench.servers import (
    Child,
    EngineShape,
    corral_settings,
    free_ports,
    running,
    shared_token,
    wait_until_ready,
)
from bench.step_times import StepTimes


class Replicas(NamedTuple):
    """Addresses of the inference services, URLs of the gateways, and the processes by role."""

    targets: tuple[str, ...]
    urls: tuple[str, ...]
    processes: Mapping[str, int]

    def kill(self, number: int) -> None:
        """Kill an inference service and its engine."""
        os.killpg(self.processes[f"replica {number}"], signal.SIGKILL)


@contextmanager
def paced_replicas(
    count: int, shape: EngineShape, times: StepTimes, folder: Path, *, num_gateways: int = 0
) -> Iterator[Replicas]:
    """Run `count` inference services, and gateways for all of them. `folder` gets the logs."""
    token, started = shared_token(folder), list[tuple[str, Child, str]]()
    grpc_ports, http_ports = free_ports(2 * count), free_ports(2 * num_gateways)
    targets = tuple(f"127.0.0.1:{port}" for port in grpc_ports[::2])
    with ExitStack() as stack:
        for number in range(count):
            own = grpc_ports[2 * number : 2 * number + 2]
            settings = {
                **corral_settings(shape, folder / f"data {number}", own, own),
                **token,
                STEP_TIMES: json.dumps(times),
                "CORRAL_INFERENCE_ENGINE__STREAM_INTERVAL_MS": "0",
                "CORRAL_INFERENCE_ENGINE__SAVED_PREFIX_MIB": "256",
            }
            child = stack.enter_context(
                running(
                    [sys.executable, "-m", "bench.paced_engine"],
                    folder / f"replica-{number}.log",
                    settings,
                )
            )
            started.append((f"replica {number}", child, f"http://127.0.0.1:{own[1]}/readyz"))
        for number in range(num_gateways):
            own = http_ports[2 * number : 2 * number + 2]
            settings = {
                **token,
                "CORRAL_DATA_DIR": str(folder / f"gateway {number}"),
                "CORRAL_GATEWAY_LISTEN": f"127.0.0.1:{own[0]}",
                "CORRAL_GATEWAY_MANAGEMENT_LISTEN": f"127.0.0.1:{own[1]}",
                "CORRAL_GATEWAY_INFERENCE_TARGET": ",".join(targets),
            }
            command = [sys.executable, "-m", "gateway"]
            child = stack.enter_context(
                running(command, folder / f"gateway-{number}.log", settings)
            )
            # Its own readiness would need a control service.
            started.append((f"gateway {number}", child, f"http://127.0.0.1:{own[0]}/ready"))
        for _, child, ready_url in started:
            wait_until_ready(ready_url, child)
        processes = {name: child.process.pid for name, child, _ in started}
        urls = tuple(f"http://127.0.0.1:{port}" for port in http_ports[::2])
        yield Replicas(targets, urls, processes)
