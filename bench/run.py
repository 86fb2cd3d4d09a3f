"""The benchmark: Corral beside llama-batched-bench and llama-server, in turns, in one run.

python -m bench.run                 the whole of it, some twenty minutes
python -m bench.run --quick         does the benchmark work? some seconds, bundled model, no peers
"""

import argparse
import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from bench import grpc_load, loadgen, paths, report, servers
from bench.report import Measurement
from bench.servers import EngineShape, Server
from bench.streams import LoadError, LoadFigures, Stream, decode_rate
from bench.workload import SAMPLINGS, Sampling, Workload


@dataclass(frozen=True)
class Settings:
    """What is measured, and how often."""

    cases: tuple[str, ...]
    samplings: tuple[str, ...]
    concurrency: tuple[int, ...]
    rounds: int
    prompt_tokens: int
    output_tokens: int
    requests: int  # of one load: at least so many,
    requests_per_caller: int  # and so many for each caller
    decode_prompt_tokens: int
    decode_output_tokens: int
    decode_overlap: float  # the least share of tokens made while all sequences decoded


FULL = Settings(
    cases=("decode", "http"),
    samplings=("greedy", "sampled"),
    concurrency=(1, 4, 16),
    rounds=3,
    prompt_tokens=128,
    output_tokens=64,
    requests=6,
    requests_per_caller=3,
    decode_prompt_tokens=32,
    decode_output_tokens=128,
    decode_overlap=0.5,
)
QUICK = Settings(
    cases=("decode", "http", "grpc"),
    samplings=("greedy",),
    concurrency=(1, 4),
    rounds=1,
    prompt_tokens=16,
    output_tokens=8,
    requests=2,
    requests_per_caller=1,
    decode_prompt_tokens=8,
    decode_output_tokens=32,
    decode_overlap=0.0,
)


class Bench:
    """Measures the running servers, one load at a time, on one event loop."""

    def __init__(
        self, settings: Settings, corral: Server, peer: Server | None, runner: asyncio.Runner
    ) -> None:
        self._settings = settings
        self._corral = corral
        self._peer = peer
        self._runner = runner

    def warm_up(self) -> None:
        """Let every server fault its memory in and fill its slots once."""
        most = max(self._settings.concurrency)
        workload = Workload(most, most, 16, 8, SAMPLINGS["greedy"], seed=424242)
        for server in (self._corral, self._peer):
            if server:
                self._runner.run(loadgen.run_load(server.url, workload, servers.MODEL_NAME))

    def measure_round(self, number: int, batched: dict[int, float]) -> Iterator[Measurement]:
        """Measure every case once; `batched` are llama-batched-bench's tokens/s by sequences."""
        for case in self._settings.cases:
            for name in self._settings.samplings:
                for concurrency in self._settings.concurrency:
                    measured = self._measure(case, SAMPLINGS[name], concurrency, number, batched)
                    yield from sorted(measured, key=lambda one: one.system)

    def _measure(
        self,
        case: str,
        sampling: Sampling,
        concurrency: int,
        number: int,
        batched: dict[int, float],
    ) -> list[Measurement]:
        if case == "decode":
            own = self._decode(sampling, concurrency, number)
            if concurrency not in batched:
                return [own]
            rate = batched[concurrency]
            place = (case, sampling.name, concurrency, number)
            return [own, Measurement(*place, "llama-batched-bench", rate)]
        turns: list[Callable[[], Measurement]] = [
            lambda: self._load(case, self._corral, sampling, concurrency, number)
        ]
        if peer := self._peer:
            turns.append(lambda: self._load(case, peer, sampling, concurrency, number))
        # whoever comes first in one round comes last in the next
        return [turn() for turn in (turns if number % 2 == 0 else reversed(turns))]

    def _decode(self, sampling: Sampling, concurrency: int, number: int) -> Measurement:
        settings = self._settings
        workload = Workload(
            requests=concurrency,
            concurrency=concurrency,
            prompt_tokens=settings.decode_prompt_tokens,
            output_tokens=settings.decode_output_tokens,
            sampling=sampling,
            seed=number,
        )
        streams, cpu = self._run(self._corral, self._grpc(workload))
        return Measurement(
            *("decode", sampling.name, concurrency, number, "corral"),
            tokens_per_s=decode_rate(streams, settings.decode_overlap),
            figures=LoadFigures.of(streams).to_json(),
            cpu_s=cpu,
        )

    def _load(
        self, case: str, server: Server, sampling: Sampling, concurrency: int, number: int
    ) -> Measurement:
        settings = self._settings
        workload = Workload(
            requests=max(settings.requests, settings.requests_per_caller * concurrency),
            concurrency=concurrency,
            prompt_tokens=settings.prompt_tokens,
            output_tokens=settings.output_tokens,
            sampling=sampling,
            seed=1000 * number + concurrency,
        )
        over_grpc = case == "grpc" and server.grpc_target
        load = (
            self._grpc(workload)
            if over_grpc
            else loadgen.run_load(server.url, workload, servers.MODEL_NAME)
        )
        streams, cpu = self._run(server, load)
        figures = LoadFigures.of(streams)
        return Measurement(
            *(case, sampling.name, concurrency, number, server.name),
            tokens_per_s=figures.tokens_per_s,
            figures=figures.to_json(),
            cpu_s=cpu,
        )

    def _grpc(self, workload: Workload) -> Coroutine[Any, Any, list[Stream]]:
        return grpc_load.run_load(self._corral.grpc_target, workload, servers.MODEL_NAME)

    def _run(
        self, server: Server, load: Coroutine[Any, Any, list[Stream]]
    ) -> tuple[list[Stream], dict[str, float]]:
        before = server.cpu_seconds()
        streams = self._runner.run(load)
        after = server.cpu_seconds()
        return streams, {role: round(after[role] - before.get(role, 0.0), 2) for role in after}


def batched_bench(command: list[str]) -> dict[int, float]:
    """Run llama-batched-bench and return its decoded tokens/s by number of sequences."""
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = [line for line in ran.stdout.decode(errors="replace").splitlines() if line[:1] == "{"]
    return {found["pl"]: found["speed_tg"] for found in map(json.loads, lines)}


def run(options: argparse.Namespace, settings: Settings) -> list[report.Row]:
    """Start everything, measure all rounds, write the results and return the rows."""
    machine = report.describe_machine()
    peers: Path | None = options.peers
    if not peers and not options.quick:
        peers = paths.build_peers()
    shape = EngineShape(
        model=options.model or (_random_model(peers) if peers else paths.BUNDLED_MODEL),
        slots=options.slots,
        context_tokens=options.context_tokens,
        threads=options.threads,
    )
    folder = options.output / time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    commands, measurements = _measure_all(settings, shape, peers, folder)
    rows = report.rows_of(measurements)
    context = {"machine": machine, "settings": vars(settings), "commands": commands}
    report.write_json(folder / "results.json", context, rows, measurements)
    if options.publish:
        report.publish(paths.REPOSITORY / "docs/benchmarks.md", context, rows)
    print(f"\n{report.table(rows)}\n\nEverything measured: {folder / 'results.json'}")
    return rows


def _measure_all(
    settings: Settings, shape: EngineShape, peers: Path | None, folder: Path
) -> tuple[dict[str, tuple[str, ...]], list[Measurement]]:
    measurements: list[Measurement] = []
    batched_command: list[str] = []
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        corral = stack.enter_context(servers.corral(shape, folder))
        commands, peer = {"corral": corral.command_lines}, None
        if peers:
            peer = stack.enter_context(servers.llama_server(peers / "llama-server", shape, folder))
            batched_command = servers.batched_bench_command(
                peers / "llama-batched-bench",
                shape,
                settings.decode_prompt_tokens,
                settings.decode_output_tokens,
                settings.concurrency,
            )
            commands["llama-server"] = peer.command_lines
            commands["llama-batched-bench"] = (shlex.join(batched_command),)
        bench = Bench(settings, corral, peer, runner)
        bench.warm_up()
        for number in range(settings.rounds):
            wanted = batched_command and "decode" in settings.cases
            batched = batched_bench(batched_command) if wanted else {}
            for one in bench.measure_round(number, batched):
                measurements.append(one)
                print(_progress(one, settings.rounds), flush=True)
    return commands, measurements


def _progress(one: Measurement, rounds: int) -> str:
    cpu = ", ".join(f"{role} {seconds:.2f}" for role, seconds in one.cpu_s.items())
    return (
        f"[{one.round + 1}/{rounds}] {one.case:6} {one.sampling:7} x{one.concurrency:<3}"
        f"{one.system:20}{one.tokens_per_s:9.1f} tok/s" + (f"  cpu s: {cpu}" if cpu else "")
    )


def _random_model(peers: Path) -> Path:
    # a process of its own, so that measuring needs none of the packages that make the model
    command = [sys.executable, "-m", "bench.random_model", "--peers", str(peers)]
    made = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, cwd=paths.REPOSITORY
    )
    return Path(made.stdout.strip())


def _comma_list(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _comma_numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, _comma_list(text)))


def parse(arguments: list[str] | None = None) -> tuple[argparse.Namespace, Settings]:
    """Read the command line: where things are, and the settings it changes."""
    parser = argparse.ArgumentParser(
        prog="bench.run", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="a few small loads; peers only with --peers")
    add("--publish", action="store_true", help="write the results into docs/benchmarks.md")
    add("--peers", type=Path, help="folder of the peers' programs; default: bench/peers.sh")
    add("--model", type=Path, help="GGUF file; default: random weights, 0.5 B, Q4_0")
    add("--output", type=Path, default=paths.REPOSITORY / "build/bench")
    add("--threads", type=int, default=os.cpu_count() or 1, help="of every engine")
    add("--slots", type=int, default=16)
    add("--context-tokens", type=int, default=512, help="of one slot")
    add("--cases", type=_comma_list, help="of decode,http,grpc")
    add("--samplings", type=_comma_list, help="of greedy,sampled")
    add("--concurrency", type=_comma_numbers, help="for example 1,4,16")
    add("--rounds", type=int)
    add("--prompt-tokens", type=int)
    add("--output-tokens", type=int)
    options = parser.parse_args(arguments)
    values = vars(QUICK if options.quick else FULL)
    return options, Settings(**{k: getattr(options, k, None) or v for k, v in values.items()})


def main() -> int:
    """Run the benchmark; the exit code says whether it could measure everything."""
    options, settings = parse()
    # so that the servers are stopped when somebody stops the benchmark
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    problem = ""
    try:
        run(options, settings)
    except* (LoadError, servers.ServerFailed) as failures:
        problem = str(_first(failures))
    if problem:
        print(f"bench: {problem}", file=sys.stderr)
    return 1 if problem else 0


def _first(failures: BaseException) -> BaseException:
    return _first(failures.exceptions[0]) if isinstance(failures, BaseExceptionGroup) else failures


if __name__ == "__main__":
    sys.exit(main())
