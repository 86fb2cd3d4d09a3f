"""Runs text extraction as a sandbox job, with limits."""

import asyncio
from contextlib import aclosing
from pathlib import Path

from control_svc.base.private_file import temporary_file
from control_svc.blobs.store import BlobStore
from control_svc.files.model import File
from control_svc.vector_stores.model import ProblemCode
from svc_kit.documents.text_extraction import UNSUPPORTED
from svc_kit.documents.text_job import READ_TEXT, describe_failure
from svc_kit.local_files import disk_errors
from svc_kit.sandbox.jobs import JobFailed, JobRunner


class ExtractionFailed(Exception):
    """No text can be extracted from a file. The API returns `code` and the message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class TextExtractor:
    def __init__(self, blobs: BlobStore, jobs: JobRunner, scratch: Path, max_bytes: int) -> None:
        """`scratch` is the folder of temporary files; `max_bytes` limits the size of a file."""
        self._blobs = blobs
        self._jobs = jobs
        self._scratch = scratch
        self._max_bytes = max_bytes

    async def extract(self, file: File) -> str:
        """Raises ExtractionFailed, BlobMissing, StorageFailed or ResourceExhausted."""
        if file.size_bytes > self._max_bytes:
            problem = f"The file has {file.size_bytes} bytes; the limit is {self._max_bytes}."
            raise ExtractionFailed(ProblemCode.INVALID_FILE, problem)
        async with temporary_file(self._scratch) as private:
            async with aclosing(self._blobs.read(file.blob_key, 0, file.size_bytes)) as chunks:
                async for chunk in chunks:
                    with disk_errors():
                        await asyncio.to_thread(private.write, chunk)
            with disk_errors():
                await asyncio.to_thread(private.flush)
            return await self._run_job(private.path, file)

    async def _run_job(self, path: Path, file: File) -> str:
        payload = {"path": str(path), "filename": file.filename}
        try:
            result = await self._jobs.run(READ_TEXT, payload, key=file.sha256)
        except JobFailed as error:
            problem = describe_failure(error)
            is_unsupported = problem.startswith(UNSUPPORTED)
            code = ProblemCode.UNSUPPORTED_FILE if is_unsupported else ProblemCode.INVALID_FILE
            raise ExtractionFailed(code, f"The file cannot be used: {problem}.") from None
        text: str = result["text"]
        if not text.strip():
            raise ExtractionFailed(ProblemCode.INVALID_FILE, "The file has no text.")
        return text
