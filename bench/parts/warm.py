"""The first token after a restart, beside llama-server's slot files, and what it costs to write
prefixes to disk while they grow."""

import json
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import NamedTuple

from bench import servers
from bench.contest import alternate
from bench.measurement import CORRAL, Measurement, Result, compare, median, values_by_round
from bench.servers import EngineShape, Server
from bench.stage import Part, Stage
from bench.workload import SAMPLINGS, Workload
from tools.long_model import write_long_model

COLD, WARM, COST = "first turn", "next turn after a restart", "decoding beside writing"
SLOT_FILE, STORED = "llama-server slot file", "stored objects only"
ALLOWED_SHARE, ALLOWED_COST = 0.1, 1.02
_BLOCKS = 6  # all of the bundled model


class Sizes(NamedTuple):
    """Tokens of the session, of its next turn and of the decoded stream, and rounds of both."""

    session: int
    turn: int
    decoded: int
    restarts: int
    streams: int


FULL, QUICK = Sizes(16_000, 100, 6000, 3, 5), Sizes(1000, 100, 300, 1, 1)


def measure(stage: Stage) -> Iterator[Measurement]:
    """Restart both servers in each round; then decode beside two archives in turns, each time in a
    new process: what a token costs differs by as much between two processes of the same settings.
    """
    sizes = stage.sizes(FULL, QUICK)
    restarts = [restart_corral, restart_llama_server] if stage.peers else [restart_corral]
    for number in range(stage.rounds or sizes.restarts):
        for restart in alternate(restarts, number):
            yield from restart(stage, sizes, number)
    # Threads that wait for each other would cost more.
    shape = session_shape(stage, 1, sizes.decoded + 100, 1)
    scopes = [(CORRAL, "all"), (STORED, "stored")]
    for number in range(stage.rounds or sizes.streams):
        for system, scope in alternate(scopes, number):
            with archiving_corral(stage, shape, scope) as server:
                yield decoding_cost(stage, sizes, system, server, number)


def restart_corral(stage: Stage, sizes: Sizes, number: int) -> Iterator[Measurement]:
    """Measure the first tokens of two turns. What the first one computed is written at the end."""
    cold, warm = _turns(sizes, number)
    shape = session_shape(stage, 1, sizes.session + 256, stage.threads)
    for load, turn in ((COLD, cold), (WARM, warm)):
        with archiving_corral(stage, shape, "all") as server:
            (stream,) = stage.run_http_load(server, turn).streams
        yield Measurement(load, number, CORRAL, 1e3 * stream.first_token_s)


def restart_llama_server(stage: Stage, sizes: Sizes, number: int) -> Iterator[Measurement]:
    """Measure the same, with a request that writes the slot, and one that reads it, which
    counts."""
    if stage.peers is None:
        return
    folder = stage.folder / "slots"
    folder.mkdir(parents=True, exist_ok=True)
    cold, warm = _turns(sizes, number)
    shape = session_shape(stage, 1, sizes.session + 256, stage.threads)
    for load, turn in ((COLD, cold), (WARM, warm)):
        starting = servers.llama_server(
            *(stage.peers / "llama-server", shape, stage.folder, "streams, cache"),
            ("--slot-save-path", str(folder)),
        )
        with stage.engine(starting) as server:
            started = time.perf_counter()
            if load == WARM:
                _use_slot_file(server, "restore")
            restore_s = time.perf_counter() - started
            (stream,) = stage.run_http_load(server, turn).streams
            if load == COLD:
                _use_slot_file(server, "save")
        first_token_ms = 1e3 * (restore_s + stream.first_token_s)
        figures = {"restore_ms": round(1e3 * restore_s, 1)}
        yield Measurement(load, number, SLOT_FILE, first_token_ms, figures)


def decoding_cost(
    stage: Stage, sizes: Sizes, system: str, server: Server, number: int
) -> Measurement:
    """Measure the engine's processor time for a token of one stream."""
    workload = Workload(1, 1, 16, sizes.decoded, SAMPLINGS["greedy"]).in_round(number)
    cpu_s = stage.run_http_load(server, workload).cpu_s
    cost_ms = 1e3 * cpu_s["frontend/children"] / sizes.decoded
    return Measurement(COST, number, system, cost_ms, cpu_s=cpu_s)


def _turns(sizes: Sizes, number: int) -> tuple[Workload, Workload]:
    """A session, and its next turn."""
    first = Workload(
        requests=1,
        concurrency=1,
        prompt_tokens=0,
        output_tokens=4,
        sampling=SAMPLINGS["greedy"],
        shared_prefix_tokens=sizes.session,
        as_ids=True,
    ).in_round(number)
    return first, replace(first, prompt_tokens=sizes.turn)


def session_shape(stage: Stage, slots: int, context_tokens: int, threads: int) -> EngineShape:
    """The settings of every engine, with the bundled model, whose file allows such a context:
    llama-server does not exceed what it says."""
    model = stage.folder / "long.gguf"
    if not model.exists():
        model.parent.mkdir(parents=True, exist_ok=True)
        write_long_model(model, num_blocks=_BLOCKS)
    return EngineShape(model, slots, context_tokens, threads)


def archiving_corral(
    stage: Stage, shape: EngineShape, scope: str
) -> AbstractContextManager[Server]:
    """Run Corral with a disk prefix cache of that scope, which outlives it."""
    settings = {
        "CORRAL_INFERENCE_SNAPSHOTS__ARCHIVE_SCOPE": scope,
        "CORRAL_INFERENCE_ENGINE__SAVED_PREFIX_MIB": "512",
    }
    own = replace(stage, folder=stage.folder / scope)
    return own.corral(shape, settings)


def _use_slot_file(server: Server, action: str) -> None:
    """Save or restore the only slot."""
    request = urllib.request.Request(  # noqa: S310  # our own loopback URL
        f"{server.url}/slots/0?action={action}",
        data=json.dumps({"filename": "session"}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=servers.START_TIMEOUT_S):  # noqa: S310
        pass


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare the first token after a restart with a full prefill and with the slot file, and a
    token beside writing with one without."""
    cold, warm = (values_by_round(measurements, load, CORRAL) for load in (COLD, WARM))
    slot_file = compare(measurements, WARM, SLOT_FILE, 1.0, unit="ms")
    cost = compare(measurements, COST, STORED, ALLOWED_COST, unit="ms of processor time a token")
    return [
        Result(
            f"{WARM}, of the first turn's",
            tuple(value / cold[number] for number, value in warm.items()),
            ALLOWED_SHARE,
            median([*warm.values()]),
            median([*cold.values()]),
            COLD,
            "ms",
            "at most",
        ),
        replace(slot_file, bound="at most"),
        replace(cost, bound="at most"),
    ]


PART = Part(
    name="warm",
    title="Warm after a restart",
    text=(
        f"The first token of the next turn of a session of {FULL.session:,} tokens after the server"
        " was stopped and started again, with the bundled model: Corral reads the prefix from disk"
        " by itself, verifies its digests and has it in memory for other slots too, llama-server"
        " reads the file of its slot after a request that names it. And the engine's"
        f" processor time for a token of one stream of {FULL.decoded:,} on one thread, while its"
        " prefix is written in the background (`snapshots.archive_scope` all) and while it is not"
        " (stored)."
    ),
    measure=measure,
    conclude=conclude,
)
