"""The largest batch there may be, in no more memory than a tenth of it takes."""

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
    running_batches,
    state_name,
)
from tests.support.control import BATCH

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

LINES = 50_000
ALLOWED_BYTES = 20 * 2**20
"""For 45,000 lines more, whose requests and answers alone are four times as much."""
AT_ONCE = 500
TEXT = "x" * 1000


async def test_fifty_thousand_lines_take_the_memory_of_five_thousand(tmp_path: Path) -> None:
    """Read, stored, run, committed and written: a few at a time, however many there are."""
    async with running_batches(
        tmp_path, fake=Forgetful(), patience_s=800, batches={"lines_at_once": 256}
    ) as running:
        await run(running.batches, LINES // 10)
        before = peak_bytes()
        await run(running.batches, LINES)

        assert peak_bytes() - before < ALLOWED_BYTES


class Forgetful(ScriptedInference):
    """Remembers nothing of what it was asked."""

    def _note(self, request: object, context: object) -> None:
        pass


async def run(batches: BatchClient, count: int) -> None:
    """A batch of so many lines, to its end."""
    client = batches.client
    file = (await client.files.CreateFile(messages(count), metadata=client.metadata)).file
    begun = await batches.create_from_file(file.id, endpoint=EMBEDDINGS)
    ended = [batch async for batch in batches.watch(begun.id)][-1]

    assert (state_name(ended), ended.request_counts.completed) == ("completed", count)


async def messages(count: int) -> AsyncIterator[CreateFileRequest]:
    """The file, some lines at a time: the test has no more of it than the service."""
    yield CreateFileRequest(header=FileHeader(filename="in.jsonl", purpose=BATCH))
    for start in range(0, count, AT_ONCE):
        lines = (batch_line(f"{n}", EMBEDDINGS, input=TEXT) for n in range(start, start + AT_ONCE))
        yield CreateFileRequest(chunk=jsonl(lines))


def peak_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
