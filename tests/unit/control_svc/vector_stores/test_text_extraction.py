"""What becomes of files' bytes: their text, or the reason why there is none."""

import codecs
from pathlib import Path

import pytest

from control_svc.vector_stores.ingest.text_extraction import read_text
from svc_kit.sandbox.jobs import JobRefused


def text_of(folder: Path, content: bytes, filename: str = "a.txt") -> str:
    """The text of a file with this content."""
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
def test_text_is_unicode_of_its_kind(tmp_path: Path, content: bytes, text: str) -> None:
    """UTF-8, or what a byte order mark says."""
    assert text_of(tmp_path, content) == text


def test_html_is_what_it_shows(tmp_path: Path) -> None:
    """No markup, no scripts; blocks are lines of their own."""
    page = b"<title>T</title><style>p{}</style><p>a &amp; <b>b</b></p><script>x<p></script><li>c"

    assert text_of(tmp_path, page, "page.HTML").split("\n") == ["", "T", "", "a & b", "", "c"]


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
def test_html_is_read_as_browsers_do(tmp_path: Path, page: str, text: str) -> None:
    """Quotes hide ends of tags, scripts everything but their own; what is not closed is markup."""
    assert text_of(tmp_path, page.encode(), "page.htm") == text


def test_elements_close_themselves_in_xml_alone(tmp_path: Path) -> None:
    """In HTML a script without an end hides the rest of the page."""
    page = b"""<style media='a' /><script src="a=b.js"/>a<script src="/"></script>b<script>c"""

    assert text_of(tmp_path, page, "page.xhtml") == "ab"
    assert text_of(tmp_path, page, "page.html") == ""


@pytest.mark.parametrize(
    "piece",
    [
        *("<!--", "<!-- --", "<![CDATA[", "<!", "<?", "</", "<a ", "</a ", "<a b=", "<a b='"),
        *("<a b=\"'", "<a =   ", "<script>", "<script></", "<script a=", "<style></style"),
        *("<b></i>", "&#", "&a"),
    ],
)
def test_a_hostile_page_is_read_through_a_few_times(tmp_path: Path, piece: str) -> None:
    """A megabyte of what a parser that goes back would read anew at each place, for hours."""
    page = piece * (1_000_000 // len(piece))

    assert len(text_of(tmp_path, page.encode(), "page.htm")) <= len(page)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"caf\xe9", "not UTF-8"),
        (b"\xff\xfe\x00\xd8", "not UTF-16"),
        (b"a\x00b", "unsupported: it is neither"),
        (b"PK\x03\x04 cut short", "damaged"),
        (b"%PDF-1.4 cut short", "damaged"),
    ],
)
def test_what_has_no_text_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    """With a reason for people; what is of another kind is told apart from what is damaged."""
    with pytest.raises(JobRefused, match=problem):
        text_of(tmp_path, content)


def test_a_number_that_no_character_has_is_refused(tmp_path: Path) -> None:
    """Python would not read so many digits."""
    with pytest.raises(JobRefused, match="character reference"):
        text_of(tmp_path, b"&#" + b"9" * 5000 + b";", "page.htm")
