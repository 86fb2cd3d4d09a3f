"""Environment of a part: model, programs, event loop, and the recorded command lines.

A part starts the servers it compares and sends them loads. Without the peers' programs it measures
Corral alone, without ratios.
"""

import asyncio
import json
import shlex
import subprocess
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bench import grpc_load, loadgen, servers
from bench.contest import Turn
from bench.measurement import Measurement, Result
from bench.paths import REPOSITORY
from bench.servers import EngineShape, Server
from bench.streams import LoadFigures, Stream
from bench.workload import SAMPLINGS, Workload

# Uses every slot of a server once, so that its memory is paged in.
WARM_UP = Workload(16, 16, 16, 8, SAMPLINGS["greedy"], seed=424242)

T = TypeVar("T")


class Batched(NamedTuple):
    """Speeds of llama-batched-bench for one number of sequences, in tokens per second."""

    prefill: float
    decode: float


@dataclass
class Stage:
    """Resources of a run. With `rounds` 0 each part uses its own number of rounds. `against` is
    another checkout of Corral, with a `.venv` of its own, and `vllm` the Python that has vLLM."""

    model: Path
    peers: Path | None
    threads: int
    folder: Path
    runner: asyncio.Runner
    rounds: int = 0
    quick: bool = False
    against: Path | None = None
    vllm: Path | None = None
    commands: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def sizes(self, full: T, quick: T) -> T:
        """Return `quick` in a quick run, else `full`."""
        return quick if self.quick else full

    def shape(self, slots: int, context_tokens: int) -> EngineShape:
        """Return the settings of every engine. `context_tokens` is per slot."""
        return EngineShape(self.model, slots, context_tokens, self.threads)

    # --- programs ---------------------------------------------------------------------------------

    @contextmanager
    def corral(
        self,
        shape: EngineShape,
        settings: Mapping[str, str] | None = None,
        key: str = "",
        inference: str = "inference_svc",
        checkout: Path = REPOSITORY,
    ) -> Iterator[Server]:
        """Run Corral and warm it up. `key` is an API key that the settings require; `inference` is
        the module of the inference service."""
        with servers.corral(shape, self.folder, settings, inference, checkout) as server:
            self._record_command(server.name, server.command_lines)
            if key:
                self.run_grpc_load(server, WARM_UP, key)
            else:
                servers.wait_until_served(server)
                self.run_http_load(server, WARM_UP)
            yield server

    @contextmanager
    def llama_servers(self, shape: EngineShape, layouts: Sequence[str]) -> Iterator[list[Server]]:
        """Run and warm up llama-server in each layout. Yields no servers without the peers."""
        wanted = [(self.peers / "llama-server", layout) for layout in layouts if self.peers]
        with ExitStack() as stack:
            started = []
            for binary, layout in wanted:
                server = stack.enter_context(
                    servers.llama_server(binary, shape, self.folder, layout)
                )
                self._record_command(server.name, server.command_lines)
                self.run_http_load(server, WARM_UP)
                started.append(server)
            yield started

    @contextmanager
    def engine(self, starting: AbstractContextManager[Server]) -> Iterator[Server]:
        """Run and warm up an engine of others."""
        with starting as server:
            self._record_command(server.name, server.command_lines)
            self.run_http_load(server, WARM_UP)
            yield server

    @contextmanager
    def control(self, name: str, settings: Mapping[str, str]) -> Iterator[Server]:
        """Run the control service with these settings."""
        with servers.control(self.folder, name, settings) as server:
            self._record_command(name, server.command_lines)
            yield server

    @contextmanager
    def bare_stream(self) -> Iterator[Server]:
        """Run the baseline of file transfers."""
        with servers.bare_stream(self.folder) as server:
            self._record_command(server.name, server.command_lines)
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
        """Return the speeds of llama-batched-bench by sequences. Empty without the peers."""
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
        self._record_command("llama-batched-bench", (shlex.join(command),))
        ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return read_batched(ran.stdout.decode(errors="replace"))

    def _record_command(self, name: str, lines: tuple[str, ...]) -> None:
        self.commands[name] = tuple(dict.fromkeys((*self.commands.get(name, ()), *lines)))

    # --- loads ------------------------------------------------------------------------------------

    def run_http_load(
        self, server: Server, workload: Workload, *, chat: bool = False
    ) -> "LoadResult":
        """Load `/v1/completions`, or `/v1/chat/completions`."""
        load = loadgen.run_load(server.url, workload, servers.MODEL_NAME, chat=chat)
        return self._observe(server, load)

    def run_grpc_load(self, server: Server, workload: Workload, key: str = "") -> "LoadResult":
        """Load `Generate`."""
        target = server.grpc_target
        return self._observe(server, grpc_load.run_load(target, workload, servers.MODEL_NAME, key))

    def _observe(self, server: Server, load: Coroutine[Any, Any, list[Stream]]) -> "LoadResult":
        before = server.cpu_seconds()
        streams = self.runner.run(load)
        after = server.cpu_seconds()
        cpu = {role: round(after[role] - before.get(role, 0.0), 2) for role in after}
        return LoadResult(streams, cpu)

    def throughput_turn(
        self, load: str, server: Server, workload: Workload, system: str = ""
    ) -> Turn:
        """Return a turn that measures output tokens per second over HTTP, with new prompts."""

        def turn(number: int) -> Measurement:
            result = self.run_http_load(server, workload.in_round(number))
            figures = LoadFigures.from_streams(result.streams)
            return Measurement(
                *(load, number, system or server.name, figures.tokens_per_s),
                figures=figures.to_json(),
                cpu_s=result.cpu_s,
            )

        return turn


@dataclass(frozen=True)
class Part:
    """A part of the benchmark: how it is measured and how its results are computed."""

    name: str
    title: str
    text: str  # description in the report
    measure: Callable[[Stage], Iterator[Measurement]]
    conclude: Callable[[Sequence[Measurement]], list[Result]]
    draw: Callable[[Sequence[Measurement]], Mapping[str, str]] = lambda _: {}
    """Charts of its own, by name, beside those of its results."""


class LoadResult(NamedTuple):
    """Streams of a load, and CPU time of the server's processes by role."""

    streams: list[Stream]
    cpu_s: dict[str, float]


def read_batched(output: str) -> dict[int, Batched]:
    """Parse the JSON lines in the output of llama-batched-bench."""
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {one["pl"]: Batched(one["speed_pp"], one["speed_tg"]) for one in rows}
