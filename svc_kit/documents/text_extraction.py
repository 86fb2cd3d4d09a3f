"""Extracts text from HTML, PDF, Word and plain text; runs in a sandboxed child process.

The type of a file is detected from its content; its name only distinguishes HTML, XHTML and plain
text.
"""

import codecs
import re
import zipfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from html import unescape
from io import BytesIO
from pathlib import Path, PurePath
from typing import Any, Final

from svc_kit.sandbox.jobs import JobRefused

UNSUPPORTED: Final = "its type is not supported"
"""Prefix of the problem of a file of an unsupported type."""
_XHTML_SUFFIX: Final = ".xhtml"
_HTML_SUFFIXES: Final = frozenset({".htm", ".html", _XHTML_SUFFIX})
_BLOCK_TAGS: Final = frozenset(
    {
        *("address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "footer"),
        *("h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "p"),
        *("pre", "section", "table", "td", "th", "title", "tr", "ul"),
    }
)


@cache
def _markup(*, is_xml: bool) -> re.Pattern[str]:
    """Build a pattern of comments, invisible elements, tags and declarations.

    Unclosed constructs end with the page, as in a browser, and quantifiers are possessive, so that
    each character is scanned a few times only. Backtracking parsers take hours for a megabyte of
    `<!--`, and tree builders for nested tags. Elements can be self-closing in XML only.
    """
    attributes = r"(?:[^>=]++|=\s*+(?:\"[^\"]*+\"?|'[^']*+'?|[^\s>]*+))*+"
    empty = r"(?<=/)>|" if is_xml else ""
    return re.compile(
        r"<!--(?:-?>|.*?(?:--!?>|\Z))"
        rf"|<(?P<silent>script|style|template|noscript)(?=[\s/>]){attributes}"
        rf"(?:{empty}.*?(?:</(?P=silent)(?=[\s/>])[^>]*+>?|\Z))"
        rf"|</?(?P<tag>[a-z][^\s/>]*+){attributes}>?"
        r"|<[!?/][^>]*+>?",
        re.IGNORECASE | re.DOTALL,
    )


_BYTE_ORDER_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def read_text(payload: dict[str, Any]) -> dict[str, str]:
    """Extract the "text" of a file, uploaded as "filename": of its "data", or else of the file at
    the absolute "path".

    Raises:
        JobRefused: the file is damaged or of an unsupported type.
    """
    content = payload.get("data") or Path(payload["path"]).read_bytes()
    suffix = PurePath(payload["filename"]).suffix.lower()
    text = _choose_reader(content, suffix)(content).replace("\x00", "")  # invalid in PostgreSQL
    return {"text": text.encode("utf-8", "replace").decode()}


def _choose_reader(content: bytes, suffix: str) -> Callable[[bytes], str]:
    if content.startswith(b"%PDF-"):
        return _read_pdf
    if content.startswith(b"PK\x03\x04"):
        return _read_docx
    if suffix in _HTML_SUFFIXES:
        return partial(_read_html, is_xml=suffix == _XHTML_SUFFIX)
    return _read_plain


def _read_plain(content: bytes) -> str:
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS if content.startswith(mark)), "utf-8")
    if encoding != "utf-16" and b"\x00" in content:
        raise JobRefused(f"{UNSUPPORTED}; supported types are text, HTML, PDF and Word documents")
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        name = encoding.removesuffix("-sig").upper()
        raise JobRefused(f"it is not valid {name}: invalid byte at offset {error.start}") from None


def _read_html(content: bytes, *, is_xml: bool) -> str:
    try:
        return "".join(_html_parts(_read_plain(content), _markup(is_xml=is_xml)))
    except ValueError:  # more digits than int() accepts
        raise JobRefused("it contains an invalid character reference") from None


def _html_parts(page: str, markup: re.Pattern[str]) -> Iterator[str]:
    """Yield the text of a page, with a newline at block tags."""
    end = 0
    for match in markup.finditer(page):
        yield unescape(page[end : match.start()])
        if (match["tag"] or "").lower() in _BLOCK_TAGS:
            yield "\n"
        end = match.end()
    yield unescape(page[end:])


def _read_pdf(content: bytes) -> str:
    import pypdfium2  # type: ignore[import-untyped]  # loads a large library

    try:
        document = pypdfium2.PdfDocument(content)
        text = "\n\n".join(page.get_textpage().get_text_bounded() for page in document)
    except pypdfium2.PdfiumError as error:
        is_encrypted = error.err_code == pypdfium2.raw.FPDF_ERR_PASSWORD
        raise JobRefused(f"the PDF is {'encrypted' if is_encrypted else 'damaged'}") from None
    # PDFium joins a word that is hyphenated at the end of a line, with U+0002 for the hyphen.
    return text.replace("\r\n", "\n").replace("\x02", "")


def _read_docx(content: bytes) -> str:
    from docx import Document
    from docx.opc.exceptions import OpcError
    from lxml.etree import LxmlError  # type: ignore[import-untyped]

    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            if "word/document.xml" not in archive.namelist():
                raise JobRefused(f"{UNSUPPORTED}: it is an archive, but not a Word document")
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
