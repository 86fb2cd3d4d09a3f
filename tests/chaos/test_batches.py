"""Batches of 500 lines while processes are killed at random: every line is run once."""

import logging
import random
import secrets
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.support import sdk_batches
from tests.support.services import Corral, corral_up

log = logging.getLogger(__name__)
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

LINES = 500
KILLS = [sdk_batches.CONTROL] * 6 + [
    sdk_batches.ENGINE,
    sdk_batches.FRONTEND,
    sdk_batches.GATEWAY,
] * 2


@pytest.fixture
def corral(tmp_path: Path) -> Iterator[Corral]:
    """A Corral whose engine can be made to abort."""
    inference = {
        "engine.slots": 4,
        "engine.context_tokens": 1024,
        "engine.abort_on": sdk_batches.POISON,
    }
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
    batch = sdk_batches.start_batch(client, sdk_batches.make_lines(LINES))
    for moment, words in zip(moments, rng.sample(KILLS, len(KILLS)), strict=True):
        sdk_batches.wait_for_batch(corral, batch.id, moment)
        sdk_batches.kill_process(corral, words)
    sdk_batches.wait_for_batch(corral, batch.id)
    ended = sdk_batches.read_batch(client, batch.id)

    assert (ended.batch.status, ended.failed) == ("completed", {})
    assert len(ended.completed) == LINES
    sdk_batches.assert_totals(ended)


def test_one_line_that_aborts_the_engine_fails_alone(corral: Corral, client: openai.OpenAI) -> None:
    """499 results, and at most three aborted engines."""
    lines = sdk_batches.make_lines(LINES)
    lines[250] = sdk_batches.make_chat_line("line-250", stop=[sdk_batches.POISON])
    batch = sdk_batches.start_batch(client, lines)
    sdk_batches.wait_for_batch(corral, batch.id)
    ended = sdk_batches.read_batch(client, batch.id)
    deaths = [line for line in corral.program.stderr if "engine process ended" in line.text]

    assert (ended.batch.status, len(ended.completed)) == ("completed", LINES - 1)
    assert list(ended.failed) == ["line-250"]
    assert ended.failed["line-250"]["error"]["code"] == "engine_crashed"
    assert len(deaths) <= 3
