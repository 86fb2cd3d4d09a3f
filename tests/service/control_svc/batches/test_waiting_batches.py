"""Batches that are queued behind others are cancelled and expire without waiting for their turn."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration

from tests.support.batches import RunningBatches, chat_line, run_batches, state_name


@pytest.fixture
async def running(tmp_path: Path, database_url: str | None) -> AsyncIterator[RunningBatches]:
    """One batch at a time, with a batch that does not end, on each database."""
    limits = {"batches_at_once": 1}
    async with run_batches(tmp_path, database_url, batches=limits) as services:
        services.fake.block("endless")
        batch = await services.batches.create([chat_line("endless")])
        await services.batches.wait_for_state(batch.id, "in_progress")
        yield services


async def test_a_queued_batch_is_cancelled_at_once(running: RunningBatches) -> None:
    """No line has run, so there are no files."""
    queued = await running.batches.create([chat_line("a")])
    await running.batches.cancel(queued.id)
    outcome = await running.batches.wait_for_outcome(queued.id)

    assert (outcome.state, outcome.counts) == ("cancelled", (0, 0, 0))
    assert not outcome.batch.output_file_id
    assert not outcome.batch.error_file_id
    assert not running.fake.attempts["a"]


async def test_a_queued_batch_expires_with_all_lines(running: RunningBatches) -> None:
    """All lines are in the error file."""
    queued = await running.batches.create(
        [chat_line("a"), chat_line("b")], completion_window=Duration(seconds=3600)
    )
    running.control.clock.advance(hours=1)
    await running.control.control.sweeper.sweep()
    outcome = await running.batches.wait_for_outcome(queued.id)

    assert (outcome.state, outcome.counts) == ("expired", (2, 0, 2))
    assert {line["error"]["code"] for line in outcome.failed.values()} == {"batch_expired"}
    assert set(outcome.failed) == {"a", "b"}
    assert not running.fake.attempts["a"]


async def test_a_sweep_does_not_end_batches_within_their_window(running: RunningBatches) -> None:
    """Neither queued nor running ones."""
    queued = await running.batches.create([chat_line("a")])
    await running.control.control.sweeper.sweep()

    assert state_name(await running.batches.get(queued.id)) == "validating"
