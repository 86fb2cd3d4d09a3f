"""Batches survive a busy service, engine crashes, a restart of control, a full disk and a lost
database. Every line ends once, and few lines are computed twice."""

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from svc_kit.errors import EngineRestarting, QueueFull, UpstreamUnavailable
from tests.support import batches
from tests.support.control import run_control
from tests.support.postgres import execute

BUSY = QueueFull(bound="requests", depth=2, limit=1, retry_after=0.01)
UNAVAILABLE = UpstreamUnavailable(service="inference", retry_after=0.01)
RESTARTING = EngineRestarting(retry_after=0.01)


def names(count: int) -> list[str]:
    """The custom_ids of a batch."""
    return [f"line-{number:03}" for number in range(count)]


async def test_retryable_errors_are_retried(tmp_path: Path, database_url: str | None) -> None:
    """A full queue, an unavailable service and a restarting engine."""
    async with batches.run_batches(tmp_path, database_url) as running:
        for name, error in zip(names(3), (BUSY, UNAVAILABLE, RESTARTING), strict=True):
            running.fake.plans[name] = batches.Plan(errors=[error] * 5)
        outcome = await running.batches.run([batches.chat_line(name) for name in names(10)])

        assert (outcome.state, outcome.counts) == ("completed", (10, 10, 0))
        assert set(running.fake.answered.values()) == {1}
        assert {running.fake.attempts[name] for name in names(3)} == {6}


async def test_a_line_that_crashes_engines_fails_alone(
    tmp_path: Path, database_url: str | None
) -> None:
    """After three engine deaths; all other lines complete."""
    async with batches.run_batches(tmp_path, database_url) as running:
        running.fake.poison = {"line-100"}
        outcome = await running.batches.run([batches.chat_line(name) for name in names(200)])

        assert (outcome.state, outcome.counts) == ("completed", (200, 199, 1))
        assert list(outcome.failed) == ["line-100"]
        assert outcome.failed["line-100"]["response"] is None
        assert outcome.failed["line-100"]["error"]["code"] == "engine_crashed"
        assert running.fake.engine.deaths == 3
        assert set(running.fake.answered.values()) == {1}


async def test_engine_deaths_are_stored(tmp_path: Path) -> None:
    """The count continues after a restart of control."""
    fake = batches.ScriptedInference()
    fake.plans["poison"] = batches.Plan(
        errors=[batches.engine_death(), batches.engine_death()], release=asyncio.Event()
    )
    async with batches.run_batches(tmp_path, fake=fake) as running:
        batch = await running.batches.create([batches.chat_line("poison")])
        await fake.wait_for_attempts("poison", 3)
    fake.plans["poison"] = batches.Plan(always=batches.engine_death())
    async with batches.run_batches(tmp_path, fake=fake) as running:
        outcome = await running.batches.wait_for_outcome(batch.id)

        assert outcome.failed["poison"]["error"]["code"] == "engine_crashed"
        assert fake.attempts["poison"] == 4


async def test_the_next_control_process_resumes_a_batch(
    tmp_path: Path, database_url: str | None
) -> None:
    """Only lines that were running are computed again."""
    fake = batches.ScriptedInference()
    fake.block("line-099")
    at_once = 8
    async with batches.run_batches(
        tmp_path, database_url, fake, batches={"lines_at_once": at_once}
    ) as running:
        batch = await running.batches.create([batches.chat_line(name) for name in names(100)])
        await running.batches.wait_for_state(batch.id, "in_progress", completed=50)
    fake.plans.clear()
    async with batches.run_batches(tmp_path, database_url, fake) as running:
        outcome = await running.batches.wait_for_outcome(batch.id)

        assert (outcome.state, outcome.counts) == ("completed", (100, 100, 0))
        assert fake.answered.total() <= 100 + 2 * at_once


async def test_two_control_processes_share_a_batch(tmp_path: Path, postgres_url: str) -> None:
    """One runs it, and the other one resumes it."""
    fake = batches.ScriptedInference()
    release = fake.block("line-019")
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    async with batches.serve_inference(tmp_path, fake) as target:
        shared: dict[str, Any] = {
            "inference_target": target,
            "service_token_file": tmp_path / "token",
        }
        async with run_control(folders[0], postgres_url, **shared) as other:
            async with run_control(folders[1], postgres_url, **shared) as first:
                batch = await batches.BatchClient(first.client).create(
                    [batches.chat_line(name) for name in names(20)]
                )
                batch = await batches.BatchClient(other.client).wait_for_state(
                    batch.id, "in_progress", completed=19
                )
            release.set()
            other.clock.advance(minutes=1)  # both clocks stand still, and they differ
            outcome = await batches.BatchClient(other.client).wait_for_outcome(batch.id)

    assert batch.request_counts.completed == 19
    assert (outcome.state, outcome.counts) == ("completed", (20, 20, 0))
    assert {name: count for name, count in fake.answered.items() if count != 1} in (
        {},
        {"line-019": 2},
    )


async def test_a_batch_completes_after_a_full_disk(
    tmp_path: Path, database_url: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """No partial file is visible, and no line is computed again."""
    caplog.set_level(logging.INFO)
    async with batches.run_batches(tmp_path, database_url) as running:
        control, caller = running.control, running.batches
        release = running.fake.block("line-004")
        batch = await caller.create([batches.chat_line(name) for name in names(5)])
        await caller.wait_for_state(batch.id, "in_progress", completed=4)
        control.blobs.free_bytes = 100
        release.set()
        await caller.wait_for_state(batch.id, "finalizing")
        await control.blobs.refused.wait()
        stuck = await caller.get(batch.id)
        visible = (await caller.client.page()).files
        control.blobs.free_bytes = None
        await _until_ended(running, batch.id)
        outcome = await caller.wait_for_outcome(batch.id)

        fields = [record.fields for record in caplog.records if hasattr(record, "fields")]
        assert batches.state_name(stuck) == "finalizing"
        assert "STORAGE_FAILED" in [each.get("reason") for each in fields]
        assert [file.id for file in visible] == [batch.input_file_id]
        assert (outcome.state, outcome.counts) == ("completed", (5, 5, 0))
        assert set(running.fake.answered.values()) == {1}
        assert len(control.stored()) == 2, "the input and the output"


async def _until_ended(running: batches.RunningBatches, batch_id: str) -> None:
    """Advance the clock, so that the job is retried, until the batch has completed."""
    while True:
        with suppress(UpstreamUnavailable):
            if batches.state_name(await running.batches.get(batch_id)) == "completed":
                return
        running.control.clock.advance(seconds=10)


async def test_a_batch_completes_after_lost_database_connections(
    tmp_path: Path, postgres_url: str
) -> None:
    """Every line is in the files once."""
    cut = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    async with batches.run_batches(tmp_path, postgres_url, batches={"lines_at_once": 4}) as running:
        batch = await running.batches.create([batches.chat_line(name) for name in names(60)])
        for name in names(60)[5:50:15]:
            await running.fake.wait_for_attempts(name, 1)
            await execute(postgres_url, cut)
        await _until_ended(running, batch.id)
        outcome = await running.batches.wait_for_outcome(batch.id)

        assert (outcome.state, outcome.counts) == ("completed", (60, 60, 0))
        assert len(outcome.completed) == 60
        assert running.fake.answered.total() <= 60 + 3 * 2 * 4
