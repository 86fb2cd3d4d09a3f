"""`corral batch` against a control service, with a fake inference service behind it."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result
from corral.control.v1 import batch_pb2
from corral.control.v1 import batch_service_pb2 as pb
from corral.control.v1 import batch_service_pb2_grpc as batch_rpc

from corral_cli.batch import batch
from corral_cli.jobs import jobs
from svc_kit.errors import Draining
from svc_kit.errors.status import to_status
from tests.support.batches import (
    RunningBatches,
    batch_line,
    chat_line,
    jsonl,
    run_batches,
)

State = batch_pb2.Batch.State


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningBatches]:
    """Run a control service with a fake inference service."""
    folder = tmp_path / "data"
    folder.mkdir()
    async with run_batches(folder) as both:
        yield both


async def corral_batch(running: RunningBatches, *arguments: Any) -> Result:
    words = [*map(str, arguments), "--control", running.control.target]
    return await asyncio.to_thread(CliRunner().invoke, batch, words)


async def corral_jobs(running: RunningBatches, *arguments: str) -> Result:
    access = ("--control", running.control.target)
    token = ("--service-token-file", str(running.control.folder / "token"))
    return await asyncio.to_thread(CliRunner().invoke, jobs, [*arguments, *access, *token])


def partial_downloads(folder: Path) -> list[Path]:
    return list(folder.glob("*.part"))


def write_requests(folder: Path, *lines: object) -> Path:
    path = folder / "in.jsonl"
    path.write_bytes(jsonl(lines))
    return path


async def test_a_batch_is_submitted_watched_and_downloaded(
    running: RunningBatches, tmp_path: Path
) -> None:
    """The endpoint is the url of the first line."""
    lines = write_requests(tmp_path, chat_line("a"), chat_line("b", stream=True))
    watched = await corral_batch(running, "submit", lines, "--watch")
    batch_id = watched.stdout.split()[0]
    listed = await corral_batch(running, "list")
    answers, errors = tmp_path / "out.jsonl", tmp_path / "errors.jsonl"
    await corral_batch(running, "download", batch_id, "-o", answers)
    await corral_batch(running, "download", batch_id, "--errors", "-o", errors)
    cancelled = await corral_batch(running, "cancel", batch_id)

    assert watched.exit_code == 0, watched.output
    assert "completed, 1 of 2 completed, 1 failed" in watched.stdout
    assert "completed 1/2" in watched.stderr
    assert listed.stdout.startswith(f"{batch_id}    /v1/chat/completions, completed")
    assert json.loads(answers.read_bytes())["custom_id"] == "a"
    assert json.loads(errors.read_bytes())["custom_id"] == "b"
    assert not partial_downloads(tmp_path)
    assert cancelled.exit_code == 1
    assert "Cannot cancel" in cancelled.output


async def test_concurrent_downloads_do_not_interfere(
    running: RunningBatches, tmp_path: Path
) -> None:
    """Each writes to its own temporary file; an existing partial file is not changed."""
    batch_id = (
        await corral_batch(running, "submit", write_requests(tmp_path, chat_line("a")))
    ).stdout
    await running.batches.wait_for_outcome(batch_id.strip())
    answers, others = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    others.write_text("half of it")
    download = ("download", batch_id.strip(), "-o", answers)
    results = await asyncio.gather(*(corral_batch(running, *download) for _ in range(4)))

    assert [result.exit_code for result in results] == [0] * 4
    assert json.loads(answers.read_bytes())["custom_id"] == "a"
    assert others.read_text() == "half of it"


async def test_errors_of_a_file_are_printed_with_their_lines(
    running: RunningBatches, tmp_path: Path
) -> None:
    """The command fails."""
    lines = write_requests(tmp_path, chat_line("a"), batch_line("b", "/v1/embeddings", input="x"))
    watched = await corral_batch(running, "submit", lines, "--watch")
    batch_id = watched.stdout.split()[0]
    empty = await corral_batch(running, "download", batch_id, "-o", tmp_path / "out.jsonl")
    again = await corral_batch(running, "watch", batch_id)

    assert watched.exit_code == again.exit_code == 1
    assert "line 2: invalid_url" in watched.stderr
    assert "is failed and has no answers" in empty.output
    assert not (tmp_path / "out.jsonl").exists()


async def test_dead_jobs_are_listed_and_retried(running: RunningBatches) -> None:
    """The list shows the error. A job that is not dead cannot be retried."""
    batch_id = (await running.create_failing([chat_line("a")], failed_writes=2)).id
    await running.batches.wait_for_outcome(batch_id)
    dead = await corral_jobs(running, "dead", "--project", "default")
    job_id = dead.stdout.split()[0]
    retried = await corral_jobs(running, "retry", job_id)
    outcome = await running.batches.wait_for_outcome(batch_id)
    refused = await corral_jobs(running, "retry", job_id)

    assert f"{batch_id}    project default, dead, made " in dead.stdout
    assert "INTERNAL: " in dead.stdout
    assert f"{job_id}    batch    {batch_id}    project default, queued" in retried.stdout
    assert outcome.state == "completed"
    assert refused.exit_code == 1
    assert "cannot be retried: it is " in refused.output


@pytest.mark.parametrize("command", [["list"], ["watch", "batch_1"]])
def test_an_unreachable_server_is_reported_with_a_remedy(command: list[str]) -> None:
    """`watch` does not wait for a server that was never reached."""
    result = CliRunner().invoke(batch, [*command, "--control", "127.0.0.1:1"])

    assert result.exit_code == 1
    assert "no server answers at 127.0.0.1:1" in result.output


class DisconnectingBatches(batch_rpc.BatchServiceServicer):
    """Sends one state per call and aborts all calls but the last; None to abort without a state."""

    def __init__(self, *states: State | None) -> None:
        self._states = list(states)

    def WatchBatch(
        self, request: pb.WatchBatchRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.WatchBatchResponse]:
        """Send the next state."""
        context.send_initial_metadata(())  # prevents a transparent retry of the client's channel
        if (state := self._states.pop(0)) is not None:
            yield pb.WatchBatchResponse(batch=batch_pb2.Batch(id=request.batch_id, state=state))
        if self._states:
            status = to_status(Draining(retry_after=0.01), "req_1")
            context.set_trailing_metadata(status.trailing_metadata)
            context.abort(status.code, status.details)


def test_watch_reconnects_to_a_server_that_disconnects() -> None:
    """Each interruption is reported once."""
    running = batch_pb2.Batch.STATE_IN_PROGRESS
    servicer = DisconnectingBatches(
        running, None, None, running, None, batch_pb2.Batch.STATE_COMPLETED
    )
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    batch_rpc.add_BatchServiceServicer_to_server(servicer, server)
    target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    watched = CliRunner().invoke(batch, ["watch", "batch_1", "--control", target])
    server.stop(None).wait()

    assert watched.exit_code == 0
    assert watched.stdout.startswith("batch_1    , completed")
    assert watched.stderr.splitlines() == [
        "in progress 0/0",
        f"waiting for the server at {target}",
        f"waiting for the server at {target}",
        "completed 0/0",
    ]
