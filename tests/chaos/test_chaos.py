"""Guarantees to clients hold while processes are killed at random: with Corral's own engine, and
with two engines of others behind one name.

A short history with every `make test`; `make chaos` goes on for as long as it is told to, and kills
everything at once between its rounds.
"""

import logging
import random
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.support.chaos import LOCAL_KILLS, SERVICES, FileWork, HistoryWork, Kill, Work, survive
from tests.support.chaos_answers import (
    BatchWork,
    ChatWork,
    ResponseWork,
    RunWork,
    picture_questions,
)
from tests.support.chaos_engines import KilledEngine, two_engines
from tests.support.chaos_models import MODEL_FILE, ModelWork
from tests.support.history import History
from tests.support.model_hub import ModelHub, run_model_hub
from tests.support.model_kinds import write_model_of_kind
from tests.support.processes import Ends
from tests.support.services import MODEL, Corral, corral_up

log = logging.getLogger(__name__)
pytestmark = pytest.mark.e2e

SHORT_KILLS = 4
LONG_KILLS = 5
"""Per round. The supervisor gives up on a service that fails six times in a row."""


@dataclass(frozen=True)
class Drill:
    """How Corral is started, and what is killed. Engines of others take no pictures."""

    start: Callable[[], AbstractContextManager[Corral]]
    kills: Mapping[str, Kill]
    takes_pictures: bool = False


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "history.jsonl")


def make_works(history: History, rng: random.Random, hub: ModelHub) -> list[Work]:
    """Return the works of a run. Their random generators are independent of the kills."""
    return [
        FileWork(history, random.Random(rng.random())),
        ChatWork(history),
        ModelWork(hub, random.Random(rng.random())),
    ]


def make_answer_works(history: History, rng: random.Random) -> list[HistoryWork]:
    return [
        ResponseWork(history),
        RunWork(history, random.Random(rng.random())),
        BatchWork(history),
    ]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ModelHub]:
    model = write_model_of_kind("window", tmp_path / MODEL_FILE).read_bytes()
    with run_model_hub({MODEL_FILE: model}) as hub:
        yield hub


@pytest.fixture(params=["own engine", "two upstreams"])
def drill(request: pytest.FixtureRequest, tmp_path: Path, hub: ModelHub) -> Iterator[Drill]:
    inference = {"model_hosts": [hub.host]}
    if request.param == "own engine":
        yield Drill(partial(corral_up, tmp_path, inference=inference), LOCAL_KILLS, True)
        return
    with two_engines(tmp_path) as engines:
        urls = ",".join(engine.url for engine in engines)
        flags = ("--engine", f"{MODEL}={urls}", "--tokenizer", "bundled")
        names = ("first engine", "second engine")
        own = {name: partial(replace, engine) for name, engine in zip(names, engines, strict=True)}
        kills: dict[str, Kill] = {**SERVICES, **own}
        yield Drill(partial(corral_up, tmp_path, *flags, inference=inference), kills)


def replace(engine: KilledEngine, _: Corral) -> bool:
    """Kill an engine that is not Corral's."""
    engine.replace()
    return True


def make_rng(seed: int | None) -> random.Random:
    chosen = secrets.randbits(32) if seed is None else seed
    log.warning("seed %d", chosen)
    return random.Random(chosen)


async def test_guarantees_hold_after_random_kills(
    drill: Drill, hub: ModelHub, history: History
) -> None:
    """Of control service, gateway, frontend, engines and encoder, in random order."""
    rng = make_rng(None)
    with drill.start() as corral:
        await survive(corral, make_works(history, rng, hub), history, rng, SHORT_KILLS, drill.kills)


@pytest.mark.slow
@pytest.mark.timeout(24 * 3600)
async def test_guarantees_hold_after_many_kills(
    request: pytest.FixtureRequest, drill: Drill, hub: ModelHub, history: History
) -> None:
    """In rounds with the same data; each ends with a kill of all processes."""
    rng = make_rng(request.config.getoption("--seed", None))
    works: list[Work] = [*make_works(history, rng, hub), *make_answer_works(history, rng)]
    if drill.takes_pictures:
        questions = picture_questions(random.Random(rng.random()))
        works.append(ResponseWork(history, questions))
    for number in range(request.config.getoption("--rounds", 1)):
        log.warning("round %d", number + 1)
        with drill.start() as corral:
            await survive(corral, works, history, rng, LONG_KILLS, drill.kills)
            with Ends(process.pid for process in corral.program.family()) as household:
                corral.program.signal(signal.SIGKILL)
                assert household.wait() == []
