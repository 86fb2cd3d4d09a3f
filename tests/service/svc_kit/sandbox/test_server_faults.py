"""A job that cannot run because of the state of the server is not the fault of its caller: the
error can be retried, whatever the job is for."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from control_svc.adapters.ingest import AdapterBytes
from control_svc.files.model import File, FilePurpose
from control_svc.vector_stores.ingest.extraction_job import TextExtractor
from inference_svc.chat.templates import ChatTemplates, ModelTemplate
from inference_svc.chat.tokenization import THREAD_BYTES, PromptTokenizer, TextToTokenize
from inference_svc.media.decoder import ImageSize, MediaDecoder, MediaLimits
from inference_svc.media.document import DocumentReader
from inference_svc.models.sources import BUNDLED_PATH
from inference_svc.structured_output.compiler import GrammarCompiler, GrammarVocabulary
from inference_svc.structured_output.spec import (
    OutputFormat,
    OutputFormatKind,
    OutputSpec,
)
from svc_kit.errors import UpstreamUnavailable
from svc_kit.errors.status import is_retryable
from svc_kit.local_files import PrivateFile
from svc_kit.sandbox.jobs import JobRunner
from svc_kit.sandbox.pool import SandboxPool, SandboxSettings
from tests.support.conversations import conversation, user
from tests.support.pictures import circle_png
from tests.support.sandbox_jobs import job

SANDBOX = UpstreamUnavailable(service="sandbox", retry_after=1.0)
UNUSED = cast(Any, None)
REGEX = OutputSpec(OutputFormat(OutputFormatKind.REGEX, "a+", "regex"), None, None)
PICTURE = circle_png("red", (9, 9))


class NoBlobs:
    """A store whose blobs are all empty."""

    async def read(self, _key: str, _start: int, _length: int) -> AsyncIterator[bytes]:
        return
        yield b""


async def check_adapter(jobs: JobRunner, folder: Path) -> None:
    receiver = AdapterBytes(UNUSED, UNUSED, jobs, UNUSED, folder, 1000, UNUSED)
    with closing(PrivateFile(folder)) as file:
        await receiver.validate("mine", file)


def extract_text(jobs: JobRunner, folder: Path) -> Awaitable[Any]:
    file = File(
        id="file_1",
        filename="a.txt",
        purpose=FilePurpose.ASSISTANTS,
        size_bytes=0,
        sha256="",
        blob_key="",
        created_at=datetime.now(UTC),
        expires_at=None,
    )
    return TextExtractor(cast(Any, NoBlobs()), jobs, folder, 1000).extract(file)


def tokenize(jobs: JobRunner, _folder: Path) -> Awaitable[Any]:
    """The inference service tokenizes a long text."""
    tokenizer = PromptTokenizer(UNUSED, jobs, BUNDLED_PATH, 10 * THREAD_BYTES)
    return tokenizer.tokenize(TextToTokenize("x" * (THREAD_BYTES + 1)))


Use = Callable[[JobRunner, Path], Awaitable[Any]]
USES: Mapping[str, Use] = {
    "adapter": check_adapter,
    "file of a vector store": extract_text,
    "long text": tokenize,
    "template": lambda jobs, _: ChatTemplates(jobs).render(
        ModelTemplate.for_model("{{ messages[0].content }}", "", "", ()), conversation(user("hi"))
    ),
    "grammar": lambda jobs, _: GrammarCompiler(jobs).compile(REGEX, GrammarVocabulary(9, {}, ())),
    "picture": lambda jobs, _: MediaDecoder(jobs, MediaLimits()).decode_image(
        "image", PICTURE, ImageSize()
    ),
    "sound": lambda jobs, _: MediaDecoder(jobs, MediaLimits()).decode_audio(
        "audio", b"RIFF", 16_000
    ),
    "document": lambda jobs, _: DocumentReader(jobs, document_bytes=99, text_bytes=99).read(
        "file", b"text", "a.txt"
    ),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
async def test_a_child_that_cannot_start_is_no_fault_of_the_caller(
    use: Use, tmp_path: Path
) -> None:
    """As where processes or memory are short."""
    settings = SandboxSettings(min_children=0, preload=("no_such_module",))
    async with SandboxPool(settings) as pool:
        with pytest.raises(UpstreamUnavailable) as raised:
            await use(pool, tmp_path)

    assert raised.value == SANDBOX
    assert is_retryable(raised.value)


async def kill_child(pool: SandboxPool, folder: Path) -> None:
    """Kill the child of a job, as the kernel does when the memory of the machine is short."""
    pid = await pool.run(job("own_pid"), {})
    gate = {"file": str(folder / "never")}
    running = asyncio.create_task(pool.run(job("wait_for", deadline_s=25.0), gate))
    while not pool.num_busy:  # noqa: ASYNC110 (nothing signals the start of a job)
        await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    await running


Cause = Callable[[SandboxPool, Path], Awaitable[Any]]
CAUSES: Mapping[str, Cause] = {
    "killed": kill_child,
    "waits for a processor": lambda jobs, _: jobs.run(job("sleep", deadline_s=0.3), {}),
    "module cannot be imported": lambda jobs, _: jobs.run(job("no_such_function"), {}),
    "file cannot be read": lambda jobs, folder: jobs.run(job("read"), {"file": f"{folder}/none"}),
}


@pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES)
async def test_a_job_that_the_server_stops_can_be_retried(cause: Cause, tmp_path: Path) -> None:
    """The next job runs."""
    async with SandboxPool(SandboxSettings(min_children=1, max_children=1)) as pool:
        with pytest.raises(UpstreamUnavailable) as raised:
            await cause(pool, tmp_path)
        again = await pool.run(job("echo"), {"a": 1})

    assert raised.value == SANDBOX
    assert again == {"a": 1}


async def test_a_job_has_time_to_wait_for_a_processor() -> None:
    """Its deadline limits what it computes."""
    async with SandboxPool(SandboxSettings(min_children=1, max_children=1)) as pool:
        done = await pool.run(job("doze", deadline_s=0.5), {"seconds": 0.8})

    assert done == "done"
