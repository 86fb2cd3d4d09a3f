"""Turns documents of callers into text, in limited child processes."""

from dataclasses import replace
from secrets import token_hex
from typing import Final

from inference_svc.media.decoder import check_file_bytes
from svc_kit.documents.text_job import READ_TEXT, describe_failure
from svc_kit.errors import InvalidField, TooLong
from svc_kit.sandbox.jobs import MIB, JobFailed, JobRunner

_READ_TEXT: Final = replace(READ_TEXT, deadline_s=20.0, output_bytes=32 * MIB)
_MAX_NAME_CHARACTERS: Final = 255


class DocumentReader:
    """Extracts the text of PDF, Word, HTML and text files."""

    def __init__(self, jobs: JobRunner, *, document_bytes: int, text_bytes: int) -> None:
        """Files have at most `document_bytes`, their texts at most `text_bytes` in UTF-8."""
        self._jobs = jobs
        self._document_bytes = document_bytes
        self._text_bytes = text_bytes

    async def read(self, field: str, data: bytes, filename: str) -> str:
        """Return the text of a document, under its name as a heading. `field` is the request field
        that errors name.

        Raises:
            TooLong: The file or its text has too many bytes.
            InvalidField: It is empty, damaged, encrypted, of another type, or has no text.
            QueueFull: Too many files wait.
        """
        check_file_bytes(field, data, self._document_bytes)
        name = " ".join(filename.split())[:_MAX_NAME_CHARACTERS]
        payload = {"data": data, "filename": name}
        try:
            # A key of its own: no file is trusted because another one could be read.
            result = await self._jobs.run(_READ_TEXT, payload, key=token_hex(8))
        except JobFailed as failed:
            problem = f"the document cannot be used: {describe_failure(failed)}"
            raise InvalidField(field=field, problem=problem) from None
        text = str(result["text"]).strip()
        if not text:
            raise InvalidField(field=field, problem="the document has no text")
        if (size := len(text.encode())) > self._text_bytes:
            raise TooLong(field=field, length=size, limit=self._text_bytes, unit="bytes of text")
        return f"# {name}\n\n{text}" if name else text
