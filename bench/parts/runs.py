"""Cost of assistant runs compared with bare chats: one by one, concurrent, and on long threads."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

from bench.contest import alternate
from bench.measurement import CORRAL, Measurement, Result, median, values_by_round
from bench.run_load import Turns, connect_turns, time_concurrent_chats, time_concurrent_runs
from bench.servers import Server
from bench.stage import Part, Stage
from tools.postgres import create_database, run_postgres

DATABASES = ("SQLite", "PostgreSQL")
ALLOWED_FIRST_MS, ALLOWED_OVER_MS, ALLOWED_SHARE, ALLOWED_GROWTH = 25.0, 60.0, 1.3, 1.1
SHORT, LONG = 10, 1000  # messages of a thread
LAST_MESSAGES = 10
CALLERS = 32  # concurrent bare chats; the concurrency of runs in the control service
FIRST, OVER, AT_ONCE = "first event", "over a bare chat", "runs at once"
OUTSIDE = "outside the engine"
BARE = "bare chats"


class Sizes(NamedTuple):
    """Numbers of runs and chats."""

    alone: int  # sequential runs, and as many chats
    at_once: int
    on_threads: int  # sequential runs on threads of each length
    output_tokens: int
    rounds: int


FULL = Sizes(alone=20, at_once=200, on_threads=12, output_tokens=16, rounds=3)
QUICK = Sizes(alone=2, at_once=4, on_threads=1, output_tokens=2, rounds=1)


@dataclass(frozen=True)
class Place:
    """A control service with one of the databases, and its inference service."""

    database: str
    control: Server
    inference: Server


def measure(stage: Stage) -> Iterator[Measurement]:
    """Alternate between both databases. A quick run measures SQLite only."""
    sizes, questions = stage.sizes(FULL, QUICK), map("What is {} plus one?".format, count())
    with _places(stage) as places:
        for number in range(stage.rounds or sizes.rounds):
            for place in alternate(places, number):
                for load in (_alone, _at_once, _on_threads):
                    measurements = _collect(place, load, sizes, questions, number)
                    yield from stage.runner.run(measurements)


@contextmanager
def _places(stage: Stage) -> Iterator[list[Place]]:
    shape = stage.shape(slots=16, context_tokens=1024)
    # Leave one core for the control service; compute threads wait for each other.
    shape = replace(shape, threads=max(1, shape.threads - 1))
    with ExitStack() as stack:
        inference = stack.enter_context(stage.corral(shape))
        settings = {"CORRAL_CONTROL_INFERENCE_TARGET": inference.grpc_target}
        sqlite = stack.enter_context(stage.control("runs-sqlite", settings))
        places = [Place(DATABASES[0], sqlite, inference)]
        if not stage.quick:
            url = create_database(stack.enter_context(run_postgres()).url)
            settings["CORRAL_CONTROL_DATABASE_URL"] = url
            settings["CORRAL_CONTROL_AUTO_MIGRATE"] = "true"
            postgres = stack.enter_context(stage.control("runs-postgresql", settings))
            places.append(Place(DATABASES[1], postgres, inference))
        yield places


_Load = Callable[[Place, Turns, Sizes, Iterator[str], int], AsyncIterator[Measurement]]


async def _collect(
    place: Place, load: _Load, sizes: Sizes, questions: Iterator[str], number: int
) -> list[Measurement]:
    targets = (place.control.grpc_target, place.inference.grpc_target)
    async with connect_turns(*targets, sizes.output_tokens) as turns:
        return [one async for one in load(place, turns, sizes, questions, number)]


async def _alone(
    place: Place, turns: Turns, sizes: Sizes, questions: Iterator[str], number: int
) -> AsyncIterator[Measurement]:
    """Measure sequential runs and bare chats."""
    firsts, wholes, chats = list[float](), list[float](), list[float]()
    for _ in range(sizes.alone):
        times = await turns.run(await turns.create_thread([next(questions)]))
        firsts.append(times.first_event_s)
        wholes.append(times.total_s)
        chats.append(await turns.chat(next(questions)))
    whole_ms, chat_ms = 1e3 * median(wholes), 1e3 * median(chats)
    figures = {"run_p50_ms": round(whole_ms, 3), "chat_p50_ms": round(chat_ms, 3)}
    yield Measurement(_load(FIRST, place.database), number, CORRAL, 1e3 * median(firsts))
    yield Measurement(_load(OVER, place.database), number, CORRAL, whole_ms - chat_ms, figures)


async def _at_once(
    place: Place, turns: Turns, sizes: Sizes, questions: Iterator[str], number: int
) -> AsyncIterator[Measurement]:
    """Measure concurrent runs, and the engine's time for as many bare chats."""
    load = _load(AT_ONCE, place.database)
    seconds = await time_concurrent_runs(turns, [next(questions) for _ in range(sizes.at_once)])
    yield Measurement(load, number, CORRAL, seconds)
    before = await turns.step_seconds()
    seconds = await time_concurrent_chats(
        turns, [next(questions) for _ in range(sizes.at_once)], min(CALLERS, sizes.at_once)
    )
    figures = {"wall_s": round(seconds, 3)}
    engine_s = await turns.step_seconds() - before
    yield Measurement(load, number, BARE, engine_s, figures)


async def _on_threads(
    place: Place, turns: Turns, sizes: Sizes, questions: Iterator[str], number: int
) -> AsyncIterator[Measurement]:
    """Measure runs with the last messages of short threads and of long threads."""
    threads = {
        length: [
            await turns.create_thread([next(questions) for _ in range(length)])
            for _ in range(sizes.on_threads)
        ]
        for length in (SHORT, LONG)
    }
    for length in alternate([SHORT, LONG], number):
        outside = [await _outside_engine(turns, thread) for thread in threads[length]]
        load = _load(OUTSIDE, place.database, length)
        yield Measurement(load, number, CORRAL, 1e3 * median(outside))


async def _outside_engine(turns: Turns, thread: str) -> float:
    """Return the seconds of a run outside the engine's steps."""
    before = await turns.step_seconds()
    times = await turns.run(thread, LAST_MESSAGES)
    return times.total_s - (await turns.step_seconds() - before)


def _load(what: str, database: str, length: int = 0) -> str:
    return f"{what}, {database}" + (f", {length:,} messages" if length else "")


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare each time with its limit, and long threads with short ones."""
    return [
        result
        for database in DATABASES
        for result in (
            _allowed(measurements, FIRST, database, ALLOWED_FIRST_MS),
            _allowed(measurements, OVER, database, ALLOWED_OVER_MS),
            _beside_engine(measurements, database),
            _grown(measurements, database),
        )
        if result.ratios
    ]


def _allowed(
    measurements: Sequence[Measurement], what: str, database: str, allowed_ms: float
) -> Result:
    load = _load(what, database)
    times = values_by_round(measurements, load, CORRAL).values()
    ratios = tuple(time / allowed_ms for time in times)
    own = median([*times])
    return Result(load, ratios, 1.0, own, allowed_ms, "allowed", unit="ms", bound="at most")


def _beside_engine(measurements: Sequence[Measurement], database: str) -> Result:
    load = _load(AT_ONCE, database)
    runs, engine = (values_by_round(measurements, load, system) for system in (CORRAL, BARE))
    return Result(
        f"{FULL.at_once} {load}",
        _ratios(runs, engine),
        ALLOWED_SHARE,
        median([*runs.values()]),
        median([*engine.values()]),
        f"the engine's steps for as many {BARE}",
        unit="s",
        bound="at most",
    )


def _grown(measurements: Sequence[Measurement], database: str) -> Result:
    long, short = (
        values_by_round(measurements, _load(OUTSIDE, database, length), CORRAL)
        for length in (LONG, SHORT)
    )
    return Result(
        _load(OUTSIDE, database, LONG),
        _ratios(long, short),
        ALLOWED_GROWTH,
        median([*long.values()]),
        median([*short.values()]),
        f"{SHORT} messages",
        unit="ms",
        bound="at most",
    )


def _ratios(own: dict[int, float], other: dict[int, float]) -> tuple[float, ...]:
    return tuple(value / other[n] for n, value in own.items() if other.get(n))


PART = Part(
    name="runs",
    title="Runs of assistants",
    text=(
        "The engine has one compute thread less than there are cores, for control needs one."
        f" Runs over gRPC, from `CreateRun` to the last event, {FULL.output_tokens} tokens out. One"
        f" after the other: the first event (p50) may take {ALLOWED_FIRST_MS:.0f} ms, all of it"
        f" {ALLOWED_OVER_MS:.0f} ms more than a bare `Chat`. {FULL.at_once} runs that are all"
        f" active: {ALLOWED_SHARE} times the engine's own time for as many bare chats, {CALLERS} at"
        f" once. On threads of {SHORT} and {LONG:,} messages under `last_messages:"
        f" {LAST_MESSAGES}`: what a run takes outside the engine. (That its statements and their"
        " rows are the same, `tests/service/control_svc/runs/test_run_contexts.py` checks.)"
    ),
    measure=measure,
    conclude=conclude,
)
