"""Latency and throughput of creating and reading small objects in the database."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from bench import file_load
from bench.file_load import ObjectTimes
from bench.measurement import CORRAL, Measurement, Result, median, values_by_round
from bench.servers import Server
from bench.stage import Part, Stage
from tools.postgres import create_database, run_postgres

KINDS = {"upload": "an announced upload, a row", "file": "a file of 100 bytes, synced, and its row"}
DATABASES = ("SQLite", "PostgreSQL")
CALLERS = 16
ALLOWED_MS = 10.0
FULL_COUNT, QUICK_COUNT, ROUNDS = 400, 20, 3


def measure(stage: Stage) -> Iterator[Measurement]:
    """Create and read objects with one caller and with many, alternating between databases."""
    count = stage.sizes(FULL_COUNT, QUICK_COUNT)
    with _servers(stage) as servers:
        for number in range(stage.rounds or stage.sizes(ROUNDS, 1)):
            for kind in KINDS:
                for database, server in servers.items():
                    for callers in (1, CALLERS):
                        load = file_load.create_and_get(server.grpc_target, kind, count, callers)
                        times = stage.runner.run(load)
                        yield _measurement(_load(kind, database, callers), number, times)


@contextmanager
def _servers(stage: Stage) -> Iterator[dict[str, Server]]:
    with ExitStack() as stack:
        postgres = stack.enter_context(run_postgres())
        settings = {
            "CORRAL_CONTROL_DATABASE_URL": create_database(postgres.url),
            "CORRAL_CONTROL_AUTO_MIGRATE": "true",
        }
        yield {
            "SQLite": stack.enter_context(stage.control("sqlite", {})),
            "PostgreSQL": stack.enter_context(stage.control("postgresql", settings)),
        }


def _load(kind: str, database: str, callers: int) -> str:
    return f"{kind}, {database}, {callers} at once"


def _measurement(load: str, number: int, times: ObjectTimes) -> Measurement:
    figures = {"p50_ms": round(times.p50_ms, 3), "p99_ms": round(times.p99_ms, 3)}
    return Measurement(load, number, CORRAL, times.per_s, figures)


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare the latency with its limit, and the rate of many callers with that of one."""
    return [
        result
        for kind in KINDS
        for database in DATABASES
        for result in (_time(measurements, kind, database), _rate(measurements, kind, database))
    ]


def _time(measurements: Sequence[Measurement], kind: str, database: str) -> Result:
    load = _load(kind, database, 1)
    times = [one.figures["p50_ms"] for one in measurements if one.load == load]
    return Result(
        f"{kind}, {database}: p50",
        tuple(time / ALLOWED_MS for time in times),
        1.0,
        median(times),
        ALLOWED_MS,
        "allowed",
        unit="ms",
        bound="at most",
    )


def _rate(measurements: Sequence[Measurement], kind: str, database: str) -> Result:
    alone, together = (
        values_by_round(measurements, _load(kind, database, callers), CORRAL)
        for callers in (1, CALLERS)
    )
    return Result(
        f"{kind}, {database}: {CALLERS} callers",
        tuple(rate / alone[number] for number, rate in together.items() if number in alone),
        1.0,
        median([*together.values()]),
        median([*alone.values()]),
        "one caller",
        unit="objects/s",
    )


PART = Part(
    name="objects",
    title="Small objects",
    text=(
        f"Objects made and read over gRPC, {'; '.join(f'{k}: {t}' for k, t in KINDS.items())}. One"
        f" caller may wait {ALLOWED_MS:.0f} ms (p50) for both calls, each commit being on the disk;"
        f" {CALLERS} callers at once must not make fewer objects a second than one."
    ),
    measure=measure,
    conclude=conclude,
)
