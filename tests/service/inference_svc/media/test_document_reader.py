"""Documents become text in a real child process; those that cannot are refused."""

import zipfile
from io import BytesIO

import numpy as np
import pytest

from inference_svc.media.decoder import ImageSize, MediaDecoder
from inference_svc.media.document import DocumentContent, DocumentReader
from svc_kit.errors import DomainError, InvalidField, TooLong
from svc_kit.sandbox.pool import SandboxPool
from tests.support.documents import docx, pdf

FIELD = "messages[0].content[0].file"


@pytest.fixture
def reader(pool: SandboxPool) -> DocumentReader:
    """A reader with small limits."""
    return DocumentReader(pool, document_bytes=100_000, text_bytes=1000)


def archive(name: str, content: bytes) -> bytes:
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(name, content)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("data", "filename", "text"),
    [
        (b" plain\ntext\n", "a.txt", "# a.txt\n\nplain\ntext"),
        (b"name,age\nAda,36", "", "name,age\nAda,36"),
        (b"<p>Hello<script>x()</script> you", "a.html", "# a.html\n\nHello you"),
        (pdf("First page", "Second page"), "b.pdf", "# b.pdf\n\nFirst page\n\nSecond page"),
        (docx("Pay the invoice.", "12"), "c.docx", "# c.docx\n\nPay the invoice.\n\t12"),
        (b"x", "two\nlines  and\tmore.txt", "# two lines and more.txt\n\nx"),
        (b"x", "n" * 300, f"# {'n' * 255}\n\nx"),
    ],
)
async def test_documents_are_text_under_their_name(
    reader: DocumentReader, data: bytes, filename: str, text: str
) -> None:
    """The type is recognized by the bytes; the name is one line of at most 255 characters."""
    assert await reader.read(FIELD, data, filename) == DocumentContent(text)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "the file is empty"),
        (b" \n ", "the document has no text"),
        (b"%PDF-1.7\nnothing of the kind", "the document cannot be used: the PDF is damaged"),
        (pdf("A line")[:300], "the document cannot be used: the PDF is damaged"),
        (
            b"caf\xe9",
            "the document cannot be used: it is not valid UTF-8: invalid byte at offset 3",
        ),
        (
            b"\x89PNG\r\n\x1a\n\0\0",
            "the document cannot be used: its type is not supported; supported types are text, "
            "HTML, PDF and Word documents",
        ),
        (
            archive("a.txt", b"a"),
            "the document cannot be used: its type is not supported: it is an archive, but not a "
            "Word document",
        ),
        (
            archive("word/document.xml", bytes(600_000)),
            "the document cannot be used: it cannot be read",
        ),
    ],
    ids=[
        "empty",
        "blank",
        "no PDF",
        "half a PDF",
        "Latin-1",
        "picture",
        "archive",
        "no Word document",
    ],
)
async def test_other_files_are_refused_with_the_reason(
    reader: DocumentReader, data: bytes, error: str
) -> None:
    """Named by the field of the request."""
    with pytest.raises(DomainError) as raised:
        await reader.read(FIELD, data, "a.pdf")

    assert raised.value == InvalidField(field=FIELD, problem=error)


async def test_pages_of_a_pdf_are_pictures_that_the_decoder_takes(
    reader: DocumentReader, decoder: MediaDecoder
) -> None:
    """Of the first 20; the line of text is dark on white. Other documents have none."""
    content = await reader.read(FIELD, pdf(*["Zebras"] * 22), "a.pdf", with_pages=True)
    picture = await decoder.decode_image(FIELD, content.pages[19], ImageSize())
    plain = await reader.read(FIELD, b"text", "a.txt", with_pages=True)
    rows = np.frombuffer(picture.rgb, np.uint8).reshape(picture.height, picture.width * 3)
    dark = np.flatnonzero((rows < 64).any(axis=1)) / picture.height

    assert (picture.width, picture.height) == (1187, 1536)
    assert 0.08 < dark.min() < dark.max() < 0.13
    assert (len(content.pages), plain.pages) == (20, ())


async def test_a_pdf_without_text_is_its_pages(reader: DocumentReader) -> None:
    """A scan; without its pages, it is refused."""
    scan = pdf("")
    content = await reader.read(FIELD, scan, "scan.pdf", with_pages=True)
    with pytest.raises(InvalidField, match="the document has no text"):
        await reader.read(FIELD, scan, "scan.pdf")

    assert (content.text, len(content.pages)) == ("# scan.pdf", 1)


@pytest.mark.parametrize("media_box", ["0 0 200000 10", "0 0 1 65000"])
async def test_pages_of_extreme_shapes_are_refused(reader: DocumentReader, media_box: str) -> None:
    with pytest.raises(InvalidField, match="page 1 has sides of"):
        await reader.read(FIELD, pdf("x", media_box=media_box), "", with_pages=True)


async def test_a_file_and_its_text_have_limits(reader: DocumentReader) -> None:
    """In bytes, that of the text in UTF-8."""
    errors = []
    for data in (b"x" * 100_001, "é".encode() * 501):
        with pytest.raises(TooLong) as raised:
            await reader.read(FIELD, data, "a.txt")
        errors.append(raised.value)

    assert errors == [
        TooLong(field=FIELD, length=100_001, limit=100_000, unit="bytes"),
        TooLong(field=FIELD, length=1002, limit=1000, unit="bytes of text"),
    ]
