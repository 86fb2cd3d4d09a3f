"""Text extraction from plain text, HTML and PDF, and rejection of other files."""

import codecs
from pathlib import Path

import pytest

from svc_kit.documents.text_extraction import read_text
from svc_kit.sandbox.jobs import JobRefused
from tests.support.documents import pdf

_KEY = "<" + "00" * 32 + ">"
ENCRYPTED = pdf("secret").replace(
    b"trailer << ",
    b"trailer << /ID [<00> <00>] /Encrypt << /Filter /Standard /V 1 /R 2 /P -4"
    + f" /O {_KEY} /U {_KEY} >> ".encode(),
)


def extract(folder: Path, content: bytes, filename: str = "a.txt") -> str:
    path = folder / "file"
    path.write_bytes(content)
    return read_text({"path": str(path), "filename": filename})["text"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("naïve".encode(), "naïve"),
        (codecs.BOM_UTF8 + b"marked", "marked"),
        ("wide".encode("utf-16"), "wide"),
        (codecs.BOM_UTF16_BE + "big".encode("utf-16-be"), "big"),
    ],
)
def test_text_is_decoded_by_its_byte_order_mark(tmp_path: Path, content: bytes, text: str) -> None:
    """UTF-8 if there is none."""
    assert extract(tmp_path, content) == text


def test_html_is_converted_to_visible_text(tmp_path: Path) -> None:
    """Without markup and scripts; blocks are separate lines."""
    page = b"<title>T</title><style>p{}</style><p>a &amp; <b>b</b></p><script>x<p></script><li>c"

    assert extract(tmp_path, page, "page.HTML").split("\n") == ["", "T", "", "a & b", "", "c"]


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("a<!-- x > y -->b<!-->c<!---->d<!-- <b> --!>e", "abcde"),
        ("""a<b title="x>y" lang='>'>b</b>c<a href=x"y>d""", "abcd"),
        ("a<SCRIPT src=x>if (a<b) '</p>'</Script >b<noscript/>c", "ab"),
        ("a < b, 1<2 &lt;b&gt; I </3 > <!doctype html>you", "a < b, 1<2 <b> I  you"),
        ("a<![CDATA[x]]>b<?php x ?>c</", "abc"),
        ("a<b and no end", "a"),
        ("""a<a href=?x="y>b</a>c<a href=="y>d""", "abcd"),
    ],
)
def test_html_is_parsed_as_in_browsers(tmp_path: Path, page: str, text: str) -> None:
    """Comments, quoted attributes, scripts, unclosed constructs."""
    assert extract(tmp_path, page.encode(), "page.htm") == text


def test_elements_can_be_self_closing_in_xhtml_only(tmp_path: Path) -> None:
    """In HTML, an unclosed script hides the rest of the page."""
    page = b"""<style media='a' /><script src="a=b.js"/>a<script src="/"></script>b<script>c"""

    assert extract(tmp_path, page, "page.xhtml") == "ab"
    assert extract(tmp_path, page, "page.html") == ""


@pytest.mark.parametrize(
    "piece",
    [
        *("<!--", "<!-- --", "<![CDATA[", "<!", "<?", "</", "<a ", "</a ", "<a b=", "<a b='"),
        *("<a b=\"'", "<a =   ", "<script>", "<script></", "<script a=", "<style></style"),
        *("<b></i>", "&#", "&a"),
    ],
)
def test_parsing_takes_linear_time(tmp_path: Path, piece: str) -> None:
    """A backtracking parser would take hours for a megabyte of these pieces."""
    page = piece * (1_000_000 // len(piece))

    assert len(extract(tmp_path, page.encode(), "page.htm")) <= len(page)


def test_lines_and_pages_of_a_pdf_are_separate(tmp_path: Path) -> None:
    """A word that is hyphenated at the end of a line is joined, so that it can be found."""
    content = pdf("One line\nand a hyphen-\nated word", "well-known")

    assert extract(tmp_path, content) == "One line\nand a hyphenated word\n\nwell-known"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"caf\xe9", "not valid UTF-8"),
        (b"\xff\xfe\x00\xd8", "not valid UTF-16"),
        (b"a\x00b", "its type is not supported; supported types are"),
        (b"PK\x03\x04 cut short", "damaged"),
        (b"%PDF-1.4 cut short", "the PDF is damaged"),
        (ENCRYPTED, "the PDF is encrypted"),
        (b"&#" + b"9" * 5000 + b";", "character reference"),
    ],
)
def test_invalid_files_are_rejected(tmp_path: Path, content: bytes, problem: str) -> None:
    """Unsupported types are distinguished from damaged files."""
    filename = "page.htm" if content.startswith(b"&") else "a.txt"
    with pytest.raises(JobRefused, match=problem):
        extract(tmp_path, content, filename)
