"""Files to text, in a limited child process: a parser that goes wrong takes nothing along.

What a file is, its bytes say; its name decides only between texts. What is no text, HTML, PDF or
Word document is refused by kind, so that nobody searches through noise.
"""

import codecs
import logging
import zipfile
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path, PurePath
from typing import Any, Final

from svc_kit.sandbox.jobs import JobRefused

UNSUPPORTED: Final = "unsupported"
"""Begins the problem of a file that is well, but of a kind that has no text for us."""
_HTML_NAMES: Final = frozenset({".htm", ".html", ".xhtml"})
_SILENT_TAGS: Final = frozenset({"script", "style", "template", "noscript"})
_BLOCK_TAGS: Final = frozenset(
    {
        *("address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "footer"),
        *("h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "p"),
        *("pre", "section", "table", "td", "th", "title", "tr", "ul"),
    }
)
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def read_text(payload: dict[str, Any]) -> dict[str, str]:
    """The "text" of the file at "path" (absolute), which its owner calls "filename".

    Raises:
        JobRefused: it is damaged, or of a kind that has no text for us.
    """
    content = Path(payload["path"]).read_bytes()
    kind = PurePath(payload["filename"]).suffix.lower()
    text = _reader_of(content, kind)(content)
    if "\x00" in text:
        text = text.replace("\x00", "")  # a database may refuse it
    return {"text": text.encode("utf-8", "replace").decode()}


def _reader_of(content: bytes, kind: str) -> Callable[[bytes], str]:
    if content.startswith(b"%PDF-"):
        return _read_pdf
    if content.startswith(b"PK\x03\x04"):
        return _read_docx
    return _read_html if kind in _HTML_NAMES else _read_plain


def _read_plain(content: bytes) -> str:
    encoding = next((name for mark, name in _MARKS if content.startswith(mark)), "utf-8")
    if encoding != "utf-16" and b"\x00" in content:
        raise JobRefused(f"{UNSUPPORTED}: it is neither text, HTML, PDF nor a Word document")
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        name = encoding.removesuffix("-sig").upper()
        raise JobRefused(f"it is not {name} text: byte {error.start} belongs to none") from None


def _read_html(content: bytes) -> str:
    reader = _HtmlText()
    reader.feed(_read_plain(content))
    reader.close()
    return "".join(reader.parts)


class _HtmlText(HTMLParser):
    """What a page says, a line for each block."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._silent += tag in _SILENT_TAGS
        if tag in _BLOCK_TAGS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in _SILENT_TAGS and self._silent > 0
        if tag in _BLOCK_TAGS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.parts.append(data)


def _read_pdf(content: bytes) -> str:
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it talks of every oddity
    try:
        reader = PdfReader(BytesIO(content))
        if reader.is_encrypted and not reader.decrypt(""):
            raise JobRefused("the PDF is encrypted")
        return "\n\n".join(page.extract_text() for page in reader.pages)
    except PyPdfError:
        raise JobRefused("the PDF is damaged") from None


def _read_docx(content: bytes) -> str:
    from docx import Document
    from docx.opc.exceptions import OpcError
    from lxml.etree import LxmlError  # type: ignore[import-untyped]

    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            if "word/document.xml" not in archive.namelist():
                raise JobRefused(f"{UNSUPPORTED}: it is an archive, and no Word document")
        return "\n".join(_docx_lines(Document(BytesIO(content))))
    except (zipfile.BadZipFile, OpcError, LxmlError):
        raise JobRefused("the Word document is damaged") from None


def _docx_lines(document: Any) -> Iterator[str]:
    for block in document.iter_inner_content():
        if hasattr(block, "rows"):
            for row in block.rows:
                yield "\t".join(cell.text for cell in row.cells)
        else:
            yield block.text
