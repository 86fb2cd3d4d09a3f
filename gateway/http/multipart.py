"""Streaming parser of multipart forms, with limits on fields but not on files."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from svc_kit.errors import (
    BodyTooSlow,
    CallerCancelled,
    InvalidField,
    MissingField,
    TooLong,
    UnsupportedMediaType,
)

MEDIA_TYPE: Final = "multipart/form-data"
FILE_FIELD: Final = "file"
MAX_FIELDS: Final = 32
MAX_FIELD_BYTES: Final = 4096


class FormField(NamedTuple):
    name: str
    text: str


class FormFile(NamedTuple):
    """The start of a file. Its bytes follow."""

    name: str
    filename: str


FormPiece = FormField | FormFile | bytes


async def read_form(request: Request, idle_timeout_s: float) -> AsyncIterator[FormPiece]:
    """Yield the fields and file chunks of a form as they arrive.

    Raises UnsupportedMediaType, InvalidField or TooLong for an invalid form, BodyTooSlow after
    `idle_timeout_s` seconds without data, and CallerCancelled if the client disconnects.
    """
    form = _FormParser(_boundary(request))
    chunks = aiter(request.stream())
    try:
        while True:
            async with asyncio.timeout(idle_timeout_s):
                chunk = await anext(chunks, None)
            if chunk is None:
                break
            for piece in form.feed(chunk):
                yield piece
    except TimeoutError:
        raise BodyTooSlow(problem=f"nothing came for {idle_timeout_s:g} s") from None
    except ClientDisconnect:
        raise CallerCancelled from None
    if not form.is_complete:
        raise InvalidField(field="request", problem="the form is incomplete")


async def read_file(
    request: Request, idle_timeout_s: float, fields: dict[str, str]
) -> AsyncIterator[FormFile | bytes]:
    """Yield the only file of a form, which is in FILE_FIELD: its name, then its bytes. The text
    fields are added to `fields` as they arrive. Raises as `read_form`, and MissingField."""
    has_file = False
    async for piece in read_form(request, idle_timeout_s):
        if isinstance(piece, FormField):
            fields[piece.name] = piece.text
            continue
        if isinstance(piece, FormFile):
            if piece.name != FILE_FIELD or has_file:
                problem = f"the form must have exactly one file, in the field '{FILE_FIELD}'"
                raise InvalidField(field=piece.name, problem=problem)
            has_file = True
        yield piece
    if not has_file:
        raise MissingField(field=FILE_FIELD)


def _boundary(request: Request) -> bytes:
    content_type = request.headers.get("content-type", "")
    media_type, options = parse_options_header(content_type)
    if media_type != MEDIA_TYPE.encode() or not options.get(b"boundary"):
        raise UnsupportedMediaType(media_type=content_type, expected=MEDIA_TYPE)
    return options[b"boundary"]


@dataclass
class _Part:
    """The part that is being parsed."""

    headers: dict[bytes, bytes]
    name: str = ""
    text: bytes | None = None
    """The text of a field so far. None if the part is a file."""


class _FormParser:
    def __init__(self, boundary: bytes) -> None:
        self._part = _Part({})
        self._header = [b"", b""]
        self._pieces: list[FormPiece] = []
        self._num_parts = 0
        self.is_complete = False
        callbacks: dict[str, Callable[..., None]] = {
            "on_part_begin": self._begin,
            "on_header_field": self._add_header_name,
            "on_header_value": self._add_header_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._add_data,
            "on_part_end": self._end,
            "on_end": self._complete,
        }
        try:
            self._parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]
        except FormParserError as error:
            raise InvalidField(field="content-type", problem=str(error)) from None

    def feed(self, chunk: bytes) -> list[FormPiece]:
        """Parse a chunk and return the pieces in it. Raises InvalidField or TooLong."""
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise InvalidField(field="request", problem=str(error)) from None
        pieces, self._pieces = self._pieces, []
        return pieces

    def _begin(self) -> None:
        self._part = _Part({})
        self._num_parts += 1
        if self._num_parts > MAX_FIELDS:
            raise TooLong(field="request", length=self._num_parts, limit=MAX_FIELDS, unit="fields")

    def _add_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header[0] += data[start:end]

    def _add_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1] += data[start:end]

    def _end_header(self) -> None:
        name, value = self._header
        self._part.headers[name.lower()] = value
        self._header = [b"", b""]

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._part.headers.get(b"content-disposition"))
        if b"name" not in options:
            raise InvalidField(field="request", problem="a part of the form has no name")
        self._part.name = _decode(options[b"name"])
        if b"filename" in options:
            self._pieces.append(FormFile(self._part.name, _decode(options[b"filename"])))
        else:
            self._part.text = b""

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        part = self._part
        if part.text is None:
            self._pieces.append(data[start:end])
            return
        part.text += data[start:end]
        if len(part.text) > MAX_FIELD_BYTES:
            length = len(part.text)
            raise TooLong(field=part.name, length=length, limit=MAX_FIELD_BYTES, unit="bytes")

    def _end(self) -> None:
        if self._part.text is not None:
            self._pieces.append(FormField(self._part.name, _decode(self._part.text)))

    def _complete(self) -> None:
        self.is_complete = True


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
