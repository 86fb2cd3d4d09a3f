"""Turns documents of callers into text and pictures of pages, in limited child processes."""

from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any, Final

from inference_svc.media.decoder import check_file_bytes
from inference_svc.sandbox_jobs import RENDER_PAGES
from svc_kit.documents.text_job import READ_TEXT, describe_failure
from svc_kit.errors import InvalidField, TooLong
from svc_kit.sandbox.jobs import MIB, Job, JobFailed, JobRunner

_READ_TEXT: Final = replace(READ_TEXT, deadline_s=20.0, output_bytes=32 * MIB)
_MAX_NAME_CHARACTERS: Final = 255
_PAGE_LIMITS: Final = {"max_pages": 20, "side": 1536, "max_aspect": 200}
"""1536 pixels are 140 dots an inch of a page of A4 or Letter, enough for small print."""


@dataclass(frozen=True, slots=True)
class DocumentContent:
    """What a model reads of a document. `pages` are PNG files of its first 20 pages."""

    text: str
    pages: tuple[bytes, ...] = ()


class DocumentReader:
    """Extracts the text of PDF, Word, HTML and text files."""

    def __init__(self, jobs: JobRunner, *, document_bytes: int, text_bytes: int) -> None:
        """Files have at most `document_bytes`, their texts at most `text_bytes` in UTF-8."""
        self._jobs = jobs
        self._document_bytes = document_bytes
        self._text_bytes = text_bytes

    async def read(
        self, field: str, data: bytes, filename: str, *, with_pages: bool = False
    ) -> DocumentContent:
        """Return the text of a document, under its name as a heading, and pictures of its pages, 20
        at most, if it is a PDF and `with_pages`. `field` is the request field that errors name.

        Raises:
            TooLong: The file or its text has too many bytes.
            InvalidField: It is empty, damaged, encrypted, of another type, or has neither text nor
                pages.
            QueueFull: Too many files wait.
        """
        check_file_bytes(field, data, self._document_bytes)
        name = " ".join(filename.split())[:_MAX_NAME_CHARACTERS]
        result = await self._run(_READ_TEXT, {"data": data, "filename": name}, field)
        text = str(result["text"]).strip()
        if (size := len(text.encode())) > self._text_bytes:
            raise TooLong(field=field, length=size, limit=self._text_bytes, unit="bytes of text")
        pages: tuple[bytes, ...] = ()
        if with_pages and data.startswith(b"%PDF-"):
            pictures = await self._run(RENDER_PAGES, {"data": data, **_PAGE_LIMITS}, field)
            pages = tuple(pictures.values())
        if not text and not pages:
            raise InvalidField(field=field, problem="the document has no text")
        return DocumentContent(f"# {name}\n\n{text}".strip() if name else text, pages)

    async def _run(self, job: Job, payload: dict[str, Any], field: str) -> dict[str, Any]:
        try:
            # A key of its own: no file is trusted because another one could be read.
            result: dict[str, Any] = await self._jobs.run(job, payload, key=token_hex(8))
        except JobFailed as failed:
            problem = f"the document cannot be used: {describe_failure(failed)}"
            raise InvalidField(field=field, problem=problem) from None
        return result
