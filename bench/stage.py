"""What a part measures with: the model, the programs, one event loop, and the record of what ran.

A part starts the servers it compares, with sizes of its own, and sends them loads. Without the
peers' programs it measures Corral alone, and no ratio comes out.
"""

import asyncio
import json
import shlex
import subprocess
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bench import grpc_load, loadgen, servers
from bench.contest import Turn
from bench.measurement import Measurement
from bench.servers import EngineShape, Server
from bench.streams import LoadFigures, Stream
from bench.workload import SAMPLINGS, Workload

# Every server faults its memory in and fills its slots once.
WARM_UP = Workload(16, 16, 16, 8, SAMPLINGS["greedy"], seed=424242)

T = TypeVar("T")


class Batched(NamedTuple):
    """What llama-batched-bench reached with one number of sequences, tokens per second."""

    prefill: float
    decode: float


@dataclass
class Stage:
    """One model on one machine. `rounds` of 0 leaves the number to each part."""

    model: Path
    peers: Path | None
    threads: int
    folder: Path
    runner: asyncio.Runner
    rounds: int = 0
    quick: bool = False
    commands: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def sizes(self, full: T, quick: T) -> T:
        """Return the sizes of this run."""
        return quick if self.quick else full

    def shape(self, slots: int, context_tokens: int) -> EngineShape:
        """Return what every engine is given; the context is that of one slot."""
        return EngineShape(self.model, slots, context_tokens, self.threads)

    # --- programs ---------------------------------------------------------------------------------

    @contextmanager
    def corral(
        self, shape: EngineShape, settings: Mapping[str, str] | None = None, key: str = ""
    ) -> Iterator[Server]:
        """Run Corral, warmed up; `key` is what it asks of its callers by these settings."""
        with servers.corral(shape, self.folder, settings) as server:
            self._note(server.name, server.command_lines)
            if key:
                self.grpc(server, WARM_UP, key)
            else:
                self.http(server, WARM_UP)
            yield server

    @contextmanager
    def llama_servers(self, shape: EngineShape, layouts: Sequence[str]) -> Iterator[list[Server]]:
        """Run llama-server in each of the layouts, warmed up; none without the peers."""
        wanted = [(self.peers / "llama-server", layout) for layout in layouts if self.peers]
        with ExitStack() as stack:
            running = []
            for binary, layout in wanted:
                server = stack.enter_context(
                    servers.llama_server(binary, shape, self.folder, layout)
                )
                self._note(server.name, server.command_lines)
                self.http(server, WARM_UP)
                running.append(server)
            yield running

    @contextmanager
    def control(self, name: str, settings: Mapping[str, str]) -> Iterator[Server]:
        """Run the control service with these settings."""
        with servers.control(self.folder, name, settings) as server:
            self._note(name, server.command_lines)
            yield server

    @contextmanager
    def bare_stream(self) -> Iterator[Server]:
        """Run the stream that files are compared with."""
        with servers.bare_stream(self.folder) as server:
            self._note(server.name, server.command_lines)
            yield server

    def batched_bench(
        self,
        shape: EngineShape,
        prompt_tokens: int,
        output_tokens: int,
        rows: Sequence[int],
        *,
        shared_prompt: bool = False,
    ) -> dict[int, Batched]:
        """Run llama-batched-bench and return what it reached by sequences; nothing without the
        peers."""
        if not self.peers:
            return {}
        command = servers.batched_bench_command(
            self.peers / "llama-batched-bench",
            shape,
            prompt_tokens,
            output_tokens,
            rows,
            shared_prompt=shared_prompt,
        )
        self._note("llama-batched-bench", (shlex.join(command),))
        ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return read_batched(ran.stdout.decode(errors="replace"))

    def _note(self, name: str, lines: tuple[str, ...]) -> None:
        self.commands[name] = tuple(dict.fromkeys((*self.commands.get(name, ()), *lines)))

    # --- loads ------------------------------------------------------------------------------------

    def http(self, server: Server, workload: Workload) -> "Observed":
        """Load `/v1/completions`."""
        return self._observe(server, loadgen.run_load(server.url, workload, servers.MODEL_NAME))

    def grpc(self, server: Server, workload: Workload, key: str = "") -> "Observed":
        """Load `Generate`."""
        target = server.grpc_target
        return self._observe(server, grpc_load.run_load(target, workload, servers.MODEL_NAME, key))

    def _observe(self, server: Server, load: Coroutine[Any, Any, list[Stream]]) -> "Observed":
        before = server.cpu_seconds()
        streams = self.runner.run(load)
        after = server.cpu_seconds()
        cpu = {role: round(after[role] - before.get(role, 0.0), 2) for role in after}
        return Observed(streams, cpu)

    def throughput(self, load: str, server: Server, workload: Workload, system: str = "") -> Turn:
        """Return a turn that measures output tokens per second over HTTP; each round has prompts
        of its own."""

        def turn(number: int) -> Measurement:
            seen = self.http(server, workload.in_round(number))
            figures = LoadFigures.of(seen.streams)
            return Measurement(
                *(load, number, system or server.name, figures.tokens_per_s),
                figures=figures.to_json(),
                cpu_s=seen.cpu_s,
            )

        return turn


class Observed(NamedTuple):
    """The streams of a load, and the processor time of the server's processes by role."""

    streams: list[Stream]
    cpu_s: dict[str, float]


def read_batched(output: str) -> dict[int, Batched]:
    """Read llama-batched-bench's lines of JSON among whatever else it prints."""
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {one["pl"]: Batched(one["speed_pp"], one["speed_tg"]) for one in found}
