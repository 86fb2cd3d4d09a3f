"""The benchmark: Corral beside llama-batched-bench and llama-server, in turns, in one run.

python -m bench.run                        everything, some 25 minutes on two idle cores
python -m bench.run --quick                every part once with small loads, a few minutes
python -m bench.run --quick --no-peers     smoke test: Corral alone, bundled model
python -m bench.run --into FOLDER          resume an interrupted run
python -m bench.run --parts chats --no-peers --against FOLDER    this checkout beside another
"""

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

from bench import paths, report, servers
from bench.engines import find_vllm
from bench.machine import describe_machine
from bench.measurement import Measurement
from bench.parts import LONG, PARTS
from bench.records import Record, read_all, without_paths
from bench.stage import Part, Stage
from bench.streams import LoadError


def run(options: argparse.Namespace, parts: Sequence[Part]) -> bool:
    """Measure the parts that the folder does not contain yet, and print a report of all parts.

    Returns whether every target that could be compared is met.
    """
    peers = None if options.no_peers else options.peers or paths.build_peers()
    model = options.model or (_random_model(peers) if peers else paths.BUNDLED_MODEL)
    folder: Path = options.into or options.output / time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    for part in parts:
        if (folder / f"{part.name}.json").exists():
            print(f"{part.name}: already measured", flush=True)
        else:
            _measure(part, options, model, peers, folder)
    records = read_all(folder, (*PARTS, *LONG))
    print(f"\n{report.summary(records)}\n\nEverything measured: {folder}")
    if options.publish:
        for name, record in records.items():
            page = report.GPU if record.machine.get("gpus") else report.CPU
            page.results.mkdir(exist_ok=True)
            shutil.copy(folder / f"{name}.json", page.results / f"{name}.json")
        report.publish()
    concluded = report.conclude(records)
    return all(one.is_met is not False for _, _, results in concluded for one in results)


def _measure(
    part: Part, options: argparse.Namespace, model: Path, peers: Path | None, folder: Path
) -> None:
    machine, measurements = describe_machine(), list[Measurement]()
    print(f"\n{part.title} (load {machine['load_before']})", flush=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stage = Stage(
            model=model,
            peers=peers,
            threads=options.threads,
            folder=folder / "logs" / part.name,
            runner=runner,
            rounds=options.rounds,
            quick=options.quick,
            against=options.against,
            vllm=None if options.no_peers else find_vllm(),
        )
        for one in part.measure(stage):
            measurements.append(one)
            print(_progress(one), flush=True)
    Record(
        part=part.name,
        machine=machine,
        model=model.name,
        threads=options.threads,
        is_quick=options.quick,
        commands=without_paths(stage.commands),
        measurements=tuple(measurements),
    ).write(folder / f"{part.name}.json", part)


def _progress(one: Measurement) -> str:
    cpu = ", ".join(f"{role} {seconds:.2f}" for role, seconds in one.cpu_s.items())
    line = f"[{one.round}] {one.load:32} {one.system:28}{one.value:10.1f}"
    return line + (f"   cpu s: {cpu}" if cpu else "")


def _random_model(peers: Path) -> Path:
    # A separate process, so that measuring does not load the packages that generate the model.
    command = [sys.executable, "-m", "bench.random_model", "--peers", str(peers)]
    made = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, cwd=paths.REPOSITORY
    )
    return Path(made.stdout.strip())


def parse(arguments: list[str] | None = None) -> tuple[argparse.Namespace, list[Part]]:
    """Parse the command line into the options and the parts to measure."""
    parser = argparse.ArgumentParser(
        prog="bench.run", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="small loads, one round")
    add("--no-peers", action="store_true", help="measure Corral alone, without ratios")
    add("--parts", help="comma-separated, of " + ",".join(part.name for part in (*PARTS, *LONG)))
    add("--strict", action="store_true", help="fail if a target is not met")
    add("--rounds", type=int, default=0, help="rounds of every part; default: set by each part")
    add("--publish", action="store_true", help="write bench/results and the page of benchmarks")
    add("--into", type=Path, help="folder of a run to resume")
    add("--output", type=Path, default=paths.REPOSITORY / "build/bench")
    add("--peers", type=Path, help="folder of the peers' programs; default: bench/peers.sh")
    add("--against", type=Path, help="another checkout with its own .venv, for the part chats")
    add("--model", type=Path, help="GGUF file; default: random weights, 0.5 B, Q4_0")
    add("--threads", type=int, default=os.cpu_count() or 1, help="compute threads of every engine")
    options = parser.parse_args(arguments)
    wanted = options.parts.split(",") if options.parts else [part.name for part in PARTS]
    by_name = {part.name: part for part in (*PARTS, *LONG)}
    if unknown := [name for name in wanted if name not in by_name]:
        parser.error(f"unknown part: {', '.join(unknown)}; choose from {', '.join(by_name)}")
    if options.against and not (options.against / ".venv/bin/python").exists():
        parser.error(f"--against {options.against}: it has no .venv/bin/python")
    return options, [by_name[name] for name in wanted]


def main() -> int:
    """Run the benchmark. The exit code is 1 if a measurement failed, or for `--strict` a target."""
    options, parts = parse()
    # Exit through the context managers, which stop the servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    problem = ""
    try:
        if not run(options, parts) and options.strict:
            problem = "a target is not met"
    except* (LoadError, servers.ServerFailed) as failures:
        problem = str(_first(failures))
    if problem:
        print(f"bench: {problem}", file=sys.stderr)
    return 1 if problem else 0


def _first(failures: BaseException) -> BaseException:
    return _first(failures.exceptions[0]) if isinstance(failures, BaseExceptionGroup) else failures


if __name__ == "__main__":
    sys.exit(main())
