"""Parsers of forms and byte ranges, for all inputs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from gateway.http.file_content import parse_range
from gateway.http.multipart import FormField, FormFile, FormPiece, read_form
from svc_kit.errors import DomainError, RangeNotSatisfiable

HEADERS = [(b"content-type", b"multipart/form-data; boundary=frontier")]
CONTENT = st.binary(max_size=200) | st.sampled_from([b"\r\n--frontier", b"--frontier--", b"\r\n\r"])


def make_request(chunks: Sequence[bytes]) -> Request:
    waiting = [*chunks]

    async def receive() -> dict[str, Any]:
        chunk = waiting.pop(0) if waiting else b""
        return {"type": "http.request", "body": chunk, "more_body": bool(waiting)}

    return Request({"type": "http", "headers": HEADERS, "method": "POST"}, receive)


def make_form(content: bytes) -> bytes:
    return (
        b'--frontier\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--frontier\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n'
        b"content-type: text/html\r\n\r\n" + content + b"\r\n--frontier--\r\n"
    )


def read(chunks: Sequence[bytes]) -> list[FormPiece]:
    async def gather(pieces: AsyncIterator[FormPiece]) -> list[FormPiece]:
        return [piece async for piece in pieces]

    return asyncio.run(gather(read_form(make_request(chunks), 5)))


def split(raw: bytes, positions: Sequence[int]) -> list[bytes]:
    ends = sorted({place % len(raw) for place in positions})
    starts = [0, *ends]
    return [raw[start:end] for start, end in zip(starts, [*ends, len(raw)], strict=True)]


@given(CONTENT, st.lists(st.integers(0, 10_000), max_size=12))
def test_forms_can_be_split_anywhere(content: bytes, positions: list[int]) -> None:
    """Files are unchanged, also with a boundary inside a line."""
    if b"\r\n--frontier" in b"\r\n" + content:
        return
    pieces = read(split(make_form(content), positions))

    assert pieces[:2] == [FormField("purpose", "batch"), FormFile("file", "a")]
    assert b"".join(piece for piece in pieces[2:] if isinstance(piece, bytes)) == content


@given(st.binary(min_size=1, max_size=300), st.lists(st.integers(0, 10_000), max_size=5))
def test_arbitrary_bytes_raise_only_domain_errors(raw: bytes, positions: list[int]) -> None:
    with contextlib.suppress(DomainError):
        read(split(raw, positions))


@given(
    st.integers(0, 50),
    st.none() | st.integers(0, 60),
    st.none() | st.integers(0, 60),
)
def test_ranges_equal_python_slices(size: int, first: int | None, last: int | None) -> None:
    """A range after the end is not satisfiable."""
    content = bytes(range(size))
    header = f"bytes={'' if first is None else first}-{'' if last is None else last}"
    if first is None:
        expected = content[-last:] if last else b""
    else:
        expected = content[first : None if last is None else last + 1]
    try:
        found = parse_range(header, size)
    except RangeNotSatisfiable:
        assert expected == b""
        return
    if found is None:
        assert (first is None and last is None) or (first or 0) > (last or 0)
        return
    assert content[found.first : found.last + 1] == expected
    assert found.length == len(expected)
