"""Batches of 500 lines while processes are killed at random: every line is run once."""

import logging
import random
import secrets
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.support.sdk_batches import (
    CONTROL,
    ENGINE,
    FRONTEND,
    GATEWAY,
    POISON,
    assert_totals,
    kill_process,
    make_chat_line,
    make_lines,
    read_batch,
    start_batch,
    wait_for_batch,
)
from tests.support.services import Corral, corral_up

log = logging.getLogger(__name__)
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

LINES = 500
KILLS = [CONTROL] * 6 + [ENGINE, FRONTEND, GATEWAY] * 2


@pytest.fixture
def corral(tmp_path: Path) -> Iterator[Corral]:
    """A Corral whose engine can be made to abort."""
    inference = {"engine.slots": 4, "engine.context_tokens": 1024, "engine.abort_on": POISON}
    with corral_up(tmp_path, inference=inference) as running:
        yield running


@pytest.fixture
def client(corral: Corral) -> Iterator[openai.OpenAI]:
    """The SDK with enough retries for any restart."""
    with openai.OpenAI(base_url=corral.api, api_key="x", max_retries=30) as connected:
        yield connected


def test_a_batch_of_500_lines_survives_random_kills(corral: Corral, client: openai.OpenAI) -> None:
    """Of control service, engine, frontend and gateway, in random order."""
    seed = secrets.randbits(32)
    log.warning("seed %d", seed)
    rng = random.Random(seed)
    moments = sorted(rng.sample(range(LINES - 50), len(KILLS)))
    batch = start_batch(client, make_lines(LINES))
    for moment, words in zip(moments, rng.sample(KILLS, len(KILLS)), strict=True):
        wait_for_batch(corral, batch.id, moment)
        kill_process(corral, words)
    wait_for_batch(corral, batch.id)
    ended = read_batch(client, batch.id)

    assert (ended.batch.status, ended.failed) == ("completed", {})
    assert len(ended.completed) == LINES
    assert_totals(ended)


def test_one_line_that_aborts_the_engine_fails_alone(corral: Corral, client: openai.OpenAI) -> None:
    """499 results, and at most three aborted engines."""
    lines = make_lines(LINES)
    lines[250] = make_chat_line("line-250", stop=[POISON])
    batch = start_batch(client, lines)
    wait_for_batch(corral, batch.id)
    ended = read_batch(client, batch.id)
    deaths = [line for line in corral.program.stderr if "engine process ended" in line.text]

    assert (ended.batch.status, len(ended.completed)) == ("completed", LINES - 1)
    assert list(ended.failed) == ["line-250"]
    assert ended.failed["line-250"]["error"]["code"] == "engine_crashed"
    assert len(deaths) <= 3
