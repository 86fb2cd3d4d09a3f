"""Documents become text in a real child process; those that cannot are refused."""

import zipfile
from io import BytesIO

import pytest

from inference_svc.media.document import DocumentReader
from svc_kit.errors import DomainError, InvalidField, TooLong
from svc_kit.sandbox.pool import SandboxPool
from tests.support.documents import docx, pdf

FIELD = "messages[0].content[0].file"


@pytest.fixture
def reader(pool: SandboxPool) -> DocumentReader:
    """A reader with small limits."""
    return DocumentReader(pool, document_bytes=100_000, text_bytes=1000)


def archive(name: str, content: bytes) -> bytes:
    """A ZIP archive of one file."""
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
    assert await reader.read(FIELD, data, filename) == text


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
