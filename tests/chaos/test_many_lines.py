"""The largest batch needs no more memory than one with a tenth of the lines."""

import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from corral.control.v1.file_pb2 import FileHeader
from corral.control.v1.file_service_pb2 import CreateFileRequest

from tests.support.batches import (
    EMBEDDINGS,
    BatchClient,
    ScriptedInference,
    batch_line,
    jsonl,
    run_batches,
    state_name,
)
from tests.support.control import BATCH

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

LINES = 50_000
ALLOWED_BYTES = 20 * 2**20
"""For 45,000 more lines, whose requests and responses alone are four times as large."""
LINES_PER_CHUNK = 500
TEXT = "x" * 1000


async def test_fifty_thousand_lines_need_the_memory_of_five_thousand(tmp_path: Path) -> None:
    """Lines are read, stored, run, committed and written in small groups."""
    async with run_batches(
        tmp_path, fake=NonRecordingInference(), patience_s=800, batches={"lines_at_once": 256}
    ) as running:
        await run(running.batches, LINES // 10)
        before = peak_bytes()
        await run(running.batches, LINES)

        assert peak_bytes() - before < ALLOWED_BYTES


class NonRecordingInference(ScriptedInference):
    """Does not record requests."""

    def _record(self, request: object, context: object) -> None:
        pass


async def run(batches: BatchClient, count: int) -> None:
    client = batches.client
    file = (await client.files.CreateFile(messages(count), metadata=client.metadata)).file
    begun = await batches.create_from_file(file.id, endpoint=EMBEDDINGS)
    ended = [batch async for batch in batches.watch(begun.id)][-1]

    assert (state_name(ended), ended.request_counts.completed) == ("completed", count)


async def messages(count: int) -> AsyncIterator[CreateFileRequest]:
    """Yield the file in chunks, so that the test needs little memory too."""
    yield CreateFileRequest(header=FileHeader(filename="in.jsonl", purpose=BATCH))
    for start in range(0, count, LINES_PER_CHUNK):
        lines = (
            batch_line(f"{n}", EMBEDDINGS, input=TEXT)
            for n in range(start, start + LINES_PER_CHUNK)
        )
        yield CreateFileRequest(chunk=jsonl(lines))


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
