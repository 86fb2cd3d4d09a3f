"""Text of others for terminals."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from svc_kit.terminal import escape


@given(st.text(st.characters(), max_size=50))
def test_nothing_is_left_that_a_terminal_obeys(text: str) -> None:
    """In one printable line, in which everything else is as it was."""
    escaped = escape(text)

    assert not {unicodedata.category(each) for each in escaped} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert len(escaped.splitlines()) <= 1
    assert escape(escaped) == escaped
    escaped.encode()


def test_what_is_readable_stays() -> None:
    """Of all scripts; joiners and ends of lines only where they are kept."""
    text = "Füchse 狐 का\u00a0x"

    assert escape(text) == text
    assert escape("a\n\u200db\x1b", kept="\n\u200d") == "a\n\u200db\\x1b"
