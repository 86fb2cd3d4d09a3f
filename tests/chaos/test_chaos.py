"""Guarantees to clients hold while processes are killed at random.

A short history with every `make test`; `make chaos` goes on for as long as it is told to, and kills
everything at once between its rounds.
"""

import logging
import random
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chaos import ChatWork, FileWork, Work, survive
from tests.support.chaos_answers import ResponseWork, RunWork, picture_questions
from tests.support.chaos_models import MODEL_FILE, ModelWork
from tests.support.model_hub import ModelHub, run_model_hub
from tests.support.model_kinds import write_model_of_kind
from tests.support.processes import Ends
from tests.support.services import corral_up

log = logging.getLogger(__name__)
pytestmark = pytest.mark.e2e

SHORT_KILLS = 4
LONG_KILLS = 5
"""Per round. The supervisor gives up on a service that fails six times in a row."""


def make_works(rng: random.Random, hub: ModelHub) -> list[Work]:
    """Return the works of a run. Their random generators are independent of the kills."""
    return [
        FileWork(random.Random(rng.random())),
        ChatWork(),
        ModelWork(hub, random.Random(rng.random())),
    ]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ModelHub]:
    model = write_model_of_kind("window", tmp_path / MODEL_FILE).read_bytes()
    with run_model_hub({MODEL_FILE: model}) as hub:
        yield hub


def make_rng(seed: int | None) -> random.Random:
    chosen = secrets.randbits(32) if seed is None else seed
    log.warning("seed %d", chosen)
    return random.Random(chosen)


async def test_guarantees_hold_after_random_kills(tmp_path: Path, hub: ModelHub) -> None:
    """Of control service, gateway, frontend, engine and encoder, in random order."""
    rng = make_rng(None)
    with corral_up(tmp_path, inference={"model_hosts": [hub.host]}) as corral:
        await survive(corral, make_works(rng, hub), rng, SHORT_KILLS)


@pytest.mark.slow
@pytest.mark.timeout(24 * 3600)
# The SDK deprecates the Assistants API.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_guarantees_hold_after_many_kills(
    request: pytest.FixtureRequest, tmp_path: Path, hub: ModelHub
) -> None:
    """In rounds with the same data; each ends with a kill of all processes."""
    rng = make_rng(request.config.getoption("--seed", None))
    works = [
        *make_works(rng, hub),
        ResponseWork(),
        ResponseWork(picture_questions(random.Random(rng.random()))),
        RunWork(),
    ]
    for number in range(request.config.getoption("--rounds", 1)):
        log.warning("round %d", number + 1)
        with corral_up(tmp_path, inference={"model_hosts": [hub.host]}) as corral:
            await survive(corral, works, rng, LONG_KILLS)
            with Ends(process.pid for process in corral.program.family()) as household:
                corral.program.signal(signal.SIGKILL)
                assert household.wait() == []
