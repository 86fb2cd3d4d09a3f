"""Whatever dies, and whenever: what clients were promised is kept.

A short history with every `make test`; `make chaos` goes on for as long as it is told to, and kills
everything at once between its rounds.
"""

import logging
import random
import secrets
import signal
from pathlib import Path

import pytest

from tests.support.chaos import ChatWork, FileWork, Work, survive
from tests.support.chaos_answers import ResponseWork, RunWork
from tests.support.processes import Ends
from tests.support.services import corral_up

log = logging.getLogger(__name__)
pytestmark = pytest.mark.e2e

SHORT_KILLS = 4
LONG_KILLS = 5
"""In a round: the supervisor gives up on a service that dies six times soon after its start."""


def works_of(rng: random.Random) -> list[Work]:
    """What takes part in every history. Their choices are their own: who dies depends on none."""
    return [FileWork(random.Random(rng.random())), ChatWork()]


def begin(seed: int | None) -> random.Random:
    """A history of its own, or one again; the log says which."""
    chosen = secrets.randbits(32) if seed is None else seed
    log.warning("seed %d", chosen)
    return random.Random(chosen)


@pytest.mark.timeout(110)
async def test_promises_outlive_random_deaths(tmp_path: Path) -> None:
    """Control, gateway, frontend and engine, in an order and at moments that chance chooses."""
    rng = begin(None)
    with corral_up(tmp_path) as corral:
        await survive(corral, works_of(rng), rng, SHORT_KILLS)


@pytest.mark.slow
@pytest.mark.timeout(24 * 3600)
# The SDK says so of what OpenAI does not serve any more.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_promises_outlive_many_deaths(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Round after round on the same data; each ends with the death of everything at once."""
    rng = begin(request.config.getoption("--seed", None))
    works = [*works_of(rng), ResponseWork(), RunWork()]
    for number in range(request.config.getoption("--rounds", 1)):
        log.warning("round %d", number + 1)
        with corral_up(tmp_path) as corral:
            await survive(corral, works, rng, LONG_KILLS)
            with Ends(process.pid for process in corral.program.family()) as household:
                corral.program.signal(signal.SIGKILL)
                assert household.wait() == []
