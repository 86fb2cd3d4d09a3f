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
    fail_to_write,
    jsonl,
    running_batches,
)

State = batch_pb2.Batch.State


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningBatches]:
    """Both services."""
    folder = tmp_path / "data"
    folder.mkdir()
    async with running_batches(folder) as both:
        yield both


async def corral_batch(running: RunningBatches, *arguments: Any) -> Result:
    """What the command says."""
    words = ["--target", running.control.target, *map(str, arguments)]
    return await asyncio.to_thread(CliRunner().invoke, batch, words)


async def corral_jobs(running: RunningBatches, *arguments: str) -> Result:
    """What `corral jobs` says to the installation's owner."""
    access = ("--target", running.control.target)
    token = ("--service-token-file", str(running.control.folder / "token"))
    return await asyncio.to_thread(CliRunner().invoke, jobs, [*arguments, *access, *token])


def parts_in(folder: Path) -> list[Path]:
    """What is left of downloads."""
    return list(folder.glob("*.part"))


def written(folder: Path, *lines: object) -> Path:
    """A file of requests."""
    path = folder / "in.jsonl"
    path.write_bytes(jsonl(lines))
    return path


async def test_a_file_becomes_a_file(running: RunningBatches, tmp_path: Path) -> None:
    """Submitted and followed by one command, fetched by another; the first line says the url."""
    lines = written(tmp_path, chat_line("a"), chat_line("b", stream=True))
    followed = await corral_batch(running, "submit", lines, "--watch")
    batch_id = followed.stdout.split()[0]
    listed = await corral_batch(running, "list")
    answers, errors = tmp_path / "out.jsonl", tmp_path / "errors.jsonl"
    await corral_batch(running, "download", batch_id, "-o", answers)
    await corral_batch(running, "download", batch_id, "--errors", "-o", errors)
    cancelled = await corral_batch(running, "cancel", batch_id)

    assert followed.exit_code == 0, followed.output
    assert "completed, 1 of 2 completed, 1 failed" in followed.stdout
    assert "completed 1/2" in followed.stderr
    assert listed.stdout.startswith(f"{batch_id}    /v1/chat/completions, completed")
    assert json.loads(answers.read_bytes())["custom_id"] == "a"
    assert json.loads(errors.read_bytes())["custom_id"] == "b"
    assert not parts_in(tmp_path)
    assert cancelled.exit_code == 1
    assert "Cannot cancel" in cancelled.output


async def test_who_fetches_at_the_same_time_writes_elsewhere(
    running: RunningBatches, tmp_path: Path
) -> None:
    """What another run has begun to write stays as it is, and both end with the whole file."""
    batch_id = (await corral_batch(running, "submit", written(tmp_path, chat_line("a")))).stdout
    await running.batches.wait_for_outcome(batch_id.strip())
    answers, others = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    others.write_text("half of it")
    download = ("download", batch_id.strip(), "-o", answers)
    ran = await asyncio.gather(*(corral_batch(running, *download) for _ in range(4)))

    assert [each.exit_code for each in ran] == [0] * 4
    assert json.loads(answers.read_bytes())["custom_id"] == "a"
    assert others.read_text() == "half of it"


async def test_a_bad_file_is_told_by_its_lines(running: RunningBatches, tmp_path: Path) -> None:
    """And the command fails."""
    lines = written(tmp_path, chat_line("a"), batch_line("b", "/v1/embeddings", input="x"))
    followed = await corral_batch(running, "submit", lines, "--watch")
    batch_id = followed.stdout.split()[0]
    empty = await corral_batch(running, "download", batch_id, "-o", tmp_path / "out.jsonl")
    again = await corral_batch(running, "watch", batch_id)

    assert followed.exit_code == again.exit_code == 1
    assert "line 2: invalid_url" in followed.stderr
    assert "is failed and has no answers" in empty.output
    assert not (tmp_path / "out.jsonl").exists()


async def test_dead_work_is_shown_and_begins_again(
    running: RunningBatches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why it died is in its line; what is not dead is refused."""
    fail_to_write(monkeypatch, times=2)
    begun = await corral_batch(running, "submit", written(tmp_path, chat_line("a")))
    batch_id = begun.stdout.strip()
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


async def test_what_names_no_endpoint_is_refused(running: RunningBatches, tmp_path: Path) -> None:
    """By the server, with the field's name."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"no json\n")
    refused = await corral_batch(running, "submit", path)

    assert refused.exit_code == 1
    assert "endpoint" in refused.output


@pytest.mark.parametrize("command", [["list"], ["watch", "batch_1"]])
def test_without_a_server_the_remedy_is_told(command: list[str]) -> None:
    """As by every command; whoever follows a batch has not seen one yet."""
    alone = CliRunner().invoke(batch, ["--target", "127.0.0.1:1", *command])

    assert alone.exit_code == 1
    assert "no server answers at 127.0.0.1:1" in alone.output


class Leaving(batch_rpc.BatchServiceServicer):
    """Goes away after each of these, but for the last; None: at once."""

    def __init__(self, *answers: State | None) -> None:
        self._answers = list(answers)

    def WatchBatch(
        self, request: pb.WatchBatchRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.WatchBatchResponse]:
        """The next of them."""
        context.send_initial_metadata(())  # the client's channel does not ask again by itself
        if (state := self._answers.pop(0)) is not None:
            yield pb.WatchBatchResponse(batch=batch_pb2.Batch(id=request.batch_id, state=state))
        if self._answers:
            status = to_status(Draining(retry_after=0.01), "req_1")
            context.set_trailing_metadata(status.trailing_metadata)
            context.abort(status.code, status.details)


def test_a_server_that_goes_away_is_waited_for() -> None:
    """And whoever looks is told so, once each time."""
    running = batch_pb2.Batch.STATE_IN_PROGRESS
    leaving = Leaving(running, None, None, running, None, batch_pb2.Batch.STATE_COMPLETED)
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    batch_rpc.add_BatchServiceServicer_to_server(leaving, server)
    target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    followed = CliRunner().invoke(batch, ["--target", target, "watch", "batch_1"])
    server.stop(None).wait()

    assert followed.exit_code == 0
    assert followed.stdout.startswith("batch_1    , completed")
    assert followed.stderr.splitlines() == [
        "in progress 0/0",
        f"waiting for the server at {target}",
        f"waiting for the server at {target}",
        "completed 0/0",
    ]
