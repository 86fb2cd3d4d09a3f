"""The sandbox job that extracts text from a file, and its limits."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Final

from control_svc.base.private_file import temporary_file
from control_svc.blobs.store import BlobStore
from control_svc.files.model import File
from control_svc.vector_stores.ingest.text_extraction import UNSUPPORTED
from control_svc.vector_stores.model import ProblemCode
from svc_kit.local_files import disk_errors
from svc_kit.sandbox.jobs import MIB, FailureKind, Job, JobFailed, JobRunner


class Unreadable(Exception):
    """A file has no text for us; `code` and the message are what its owner sees."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


READ_TEXT: Final = Job(
    "control_svc.vector_stores.ingest.text_extraction",
    "read_text",
    deadline_s=60.0,
    memory_bytes=512 * MIB,
    output_bytes=96 * MIB,
)
"""A page of PDF may take seconds and much memory; a bomb takes no more than this."""


_PROBLEMS: Final = {
    FailureKind.DEADLINE: "reading it takes too long",
    FailureKind.MEMORY: "reading it takes too much memory",
    FailureKind.OUTPUT: "it has too much text",
    FailureKind.CRASHED: "it cannot be read",
}


class DocumentReader:
    """Extracts the text of files of at most `limit` bytes."""

    def __init__(self, blobs: BlobStore, jobs: JobRunner, scratch: Path, limit: int) -> None:
        """`scratch` is where private files lie."""
        self._blobs = blobs
        self._jobs = jobs
        self._scratch = scratch
        self._limit = limit

    async def read(self, file: File) -> str:
        """The text. Raises Unreadable, BlobMissing, StorageFailed or ResourceExhausted."""
        if file.size_bytes > self._limit:
            problem = f"The file has {file.size_bytes} bytes, the limit is {self._limit}."
            raise Unreadable(ProblemCode.INVALID_FILE, problem)
        async with temporary_file(self._scratch) as private:
            async with aclosing(self._blobs.read(file.blob_key, 0, file.size_bytes)) as chunks:
                async for chunk in chunks:
                    with disk_errors():
                        await asyncio.to_thread(private.write, chunk)
            with disk_errors():
                await asyncio.to_thread(private.flush)
            return await self._read(private.path, file)

    async def _read(self, path: Path, file: File) -> str:
        payload = {"path": str(path), "filename": file.filename}
        try:
            found = await self._jobs.run(READ_TEXT, payload, key=file.sha256)
        except JobFailed as failed:
            problem = _PROBLEMS.get(failed.kind, failed.problem)
            is_unsupported = problem.startswith(UNSUPPORTED)
            code = ProblemCode.UNSUPPORTED_FILE if is_unsupported else ProblemCode.INVALID_FILE
            raise Unreadable(code, f"The file cannot be used: {problem}.") from None
        text: str = found["text"]
        if not text.strip():
            raise Unreadable(ProblemCode.INVALID_FILE, "The file has no text.")
        return text
