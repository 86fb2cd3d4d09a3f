"""What a batch lives through: a busy service, dead engines, poison, a dead control process, a full
disk. Every line ends once, and no more is computed than has to be."""

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from svc_kit.errors import EngineRestarting, QueueFull, UpstreamUnavailable
from tests.support.batches import (
    BatchClient,
    LinesFake,
    Plan,
    RunningBatches,
    a_chat_line,
    an_inference_for,
    killer,
    running_batches,
    state_of,
)
from tests.support.control import a_control
from tests.support.postgres import execute

BUSY = QueueFull(bound="requests", depth=2, limit=1, retry_after=0.01)
AWAY = UpstreamUnavailable(service="inference", retry_after=0.01)
RESTARTING = EngineRestarting(retry_after=0.01)


def names(count: int) -> list[str]:
    """The custom_ids of a batch of so many lines."""
    return [f"line-{number:03}" for number in range(count)]


async def test_what_is_sent_back_is_tried_again(tmp_path: Path, database_url: str | None) -> None:
    """A full queue, a service that is away and an engine that restarts are nobody's fault."""
    async with running_batches(tmp_path, database_url) as running:
        for name, error in zip(names(3), (BUSY, AWAY, RESTARTING), strict=True):
            running.fake.plans[name] = Plan(errors=[error] * 5)
        batch = await running.batches.create([a_chat_line(name) for name in names(10)])
        outcome = await running.batches.outcome(batch.id)

        assert (outcome.state, outcome.counts) == ("completed", (10, 10, 0))
        assert set(running.fake.answered.values()) == {1}
        assert {running.fake.tries[name] for name in names(3)} == {6}


async def test_poison_ends_alone_and_hurts_nobody_else(
    tmp_path: Path, database_url: str | None
) -> None:
    """One error line, all others answered, three engines gone."""
    async with running_batches(tmp_path, database_url) as running:
        running.fake.poison = {"line-100"}
        batch = await running.batches.create([a_chat_line(name) for name in names(200)])
        outcome = await running.batches.outcome(batch.id)

        assert (outcome.state, outcome.counts) == ("completed", (200, 199, 1))
        assert list(outcome.failed) == ["line-100"]
        assert outcome.failed["line-100"]["response"] is None
        assert outcome.failed["line-100"]["error"]["code"] == "engine_crashed"
        assert running.fake.engine.deaths == 3
        assert set(running.fake.answered.values()) == {1}


async def test_deaths_are_remembered_over_a_restart_of_control(tmp_path: Path) -> None:
    """Poison does not begin anew with every control process."""
    fake = LinesFake()
    fake.plans["poison"] = Plan(errors=[killer(), killer()], hold=asyncio.Event())
    async with running_batches(tmp_path, fake=fake) as running:
        batch = await running.batches.create([a_chat_line("poison")])
        await fake.until_tried("poison", 3)
    fake.plans["poison"] = Plan(always=killer())
    async with running_batches(tmp_path, fake=fake) as running:
        outcome = await running.batches.outcome(batch.id)

        assert outcome.failed["poison"]["error"]["code"] == "engine_crashed"
        assert fake.tries["poison"] == 4


async def test_a_control_process_that_ends_leaves_the_rest_to_the_next(
    tmp_path: Path, database_url: str | None
) -> None:
    """What was answered is not computed again, but for what was on its way."""
    fake = LinesFake()
    fake.hold("line-099")
    at_once = 8
    async with running_batches(
        tmp_path, database_url, fake, batches={"lines_at_once": at_once}
    ) as running:
        batch = await running.batches.create([a_chat_line(name) for name in names(100)])
        await running.batches.until(batch.id, "in_progress", completed=50)
    fake.plans.clear()
    async with running_batches(tmp_path, database_url, fake) as running:
        outcome = await running.batches.outcome(batch.id)

        assert (outcome.state, outcome.counts) == ("completed", (100, 100, 0))
        assert fake.answered.total() <= 100 + 2 * at_once


async def test_two_control_processes_share_a_batch(tmp_path: Path, postgres_url: str) -> None:
    """Both know it, one carries it out, the other goes on when that one ends."""
    fake = LinesFake()
    hold = fake.hold("line-019")
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    async with an_inference_for(tmp_path, fake) as target:
        shared: dict[str, Any] = {
            "inference_target": target,
            "service_token_file": tmp_path / "token",
        }
        async with a_control(folders[0], postgres_url, **shared) as other:
            async with a_control(folders[1], postgres_url, **shared) as first:
                batch = await BatchClient(first.client).create(
                    [a_chat_line(name) for name in names(20)]
                )
                seen = await BatchClient(other.client).until(batch.id, "in_progress", completed=19)
            hold.set()
            other.clock.advance(minutes=1)  # theirs stand still, one before the other
            outcome = await BatchClient(other.client).outcome(batch.id)

    assert seen.request_counts.completed == 19
    assert (outcome.state, outcome.counts) == ("completed", (20, 20, 0))
    assert {name: count for name, count in fake.answered.items() if count != 1} in (
        {},
        {"line-019": 2},
    )


async def test_a_full_disk_holds_a_batch_up_and_loses_nothing(
    tmp_path: Path, database_url: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """No file is half there; the batch goes on once there is room, without computing again."""
    caplog.set_level(logging.INFO)
    async with running_batches(tmp_path, database_url) as running:
        control, caller = running.control, running.batches
        hold = running.fake.hold("line-004")
        batch = await caller.create([a_chat_line(name) for name in names(5)])
        await caller.until(batch.id, "in_progress", completed=4)
        control.blobs.room = 100
        hold.set()
        await caller.until(batch.id, "finalizing")
        await control.blobs.refused.wait()
        stuck = await caller.get(batch.id)
        visible = (await caller.client.page()).files
        control.blobs.room = None
        await _until_ended(running, batch.id)
        outcome = await caller.outcome(batch.id)

        told = [record.fields for record in caplog.records if hasattr(record, "fields")]
        assert state_of(stuck) == "finalizing"
        assert "STORAGE_FAILED" in [fields.get("reason") for fields in told]
        assert [file.id for file in visible] == [batch.input_file_id]
        assert (outcome.state, outcome.counts) == ("completed", (5, 5, 0))
        assert set(running.fake.answered.values()) == {1}
        assert len(control.stored()) == 2, "the input and the output"


async def _until_ended(running: RunningBatches, batch_id: str) -> None:
    """Let time pass, so that the job is tried again, until the batch has ended."""
    while True:
        with suppress(UpstreamUnavailable):
            if state_of(await running.batches.get(batch_id)) == "completed":
                return
        running.control.clock.advance(seconds=10)


async def test_a_database_that_goes_away_holds_a_batch_up(
    tmp_path: Path, postgres_url: str
) -> None:
    """All connections are cut again and again; every line ends once in the files."""
    cut = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    async with running_batches(tmp_path, postgres_url, batches={"lines_at_once": 4}) as running:
        batch = await running.batches.create([a_chat_line(name) for name in names(60)])
        for about in names(60)[5:50:15]:
            await running.fake.until_tried(about, 1)
            await execute(postgres_url, cut)
        await _until_ended(running, batch.id)
        outcome = await running.batches.outcome(batch.id)

        assert (outcome.state, outcome.counts) == ("completed", (60, 60, 0))
        assert len(outcome.completed) == 60
        assert running.fake.answered.total() <= 60 + 3 * 2 * 4
