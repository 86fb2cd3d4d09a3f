"""Batches that wait behind others: ended when they are to end, not when it is their turn."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration

from tests.support.batches import RunningBatches, a_chat_line, running_batches, state_of


@pytest.fixture
async def running(tmp_path: Path, database_url: str | None) -> AsyncIterator[RunningBatches]:
    """One batch at a time, and one that takes its time, on each database."""
    one = {"batches_at_once": 1}
    async with running_batches(tmp_path, database_url, batches=one) as both:
        both.fake.hold("endless")
        batch = await both.batches.create([a_chat_line("endless")])
        await both.batches.until(batch.id, "in_progress")
        yield both


async def test_who_waits_is_given_up_at_once(running: RunningBatches) -> None:
    """Nothing has run, so there are no files."""
    waiting = await running.batches.create([a_chat_line("a")])
    await running.batches.cancel(waiting.id)
    outcome = await running.batches.outcome(waiting.id)

    assert (outcome.state, outcome.counts) == ("cancelled", (0, 0, 0))
    assert not outcome.batch.output_file_id
    assert not outcome.batch.error_file_id
    assert not running.fake.tries["a"]


async def test_a_window_that_closes_on_who_waits_expires_every_line(
    running: RunningBatches,
) -> None:
    """Each is in the error file, and none has run."""
    waiting = await running.batches.create(
        [a_chat_line("a"), a_chat_line("b")], completion_window=Duration(seconds=3600)
    )
    running.control.clock.advance(hours=1)
    await running.control.control.sweeper.sweep()
    outcome = await running.batches.outcome(waiting.id)

    assert (outcome.state, outcome.counts) == ("expired", (2, 0, 2))
    assert {line["error"]["code"] for line in outcome.failed.values()} == {"batch_expired"}
    assert set(outcome.failed) == {"a", "b"}
    assert not running.fake.tries["a"]


async def test_a_sweep_leaves_alone_who_has_time(running: RunningBatches) -> None:
    """And who is running."""
    waiting = await running.batches.create([a_chat_line("a")])
    await running.control.control.sweeper.sweep()

    assert state_of(await running.batches.get(waiting.id)) == "validating"
