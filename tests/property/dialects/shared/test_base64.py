"""Base64 in every form in which clients write it."""

import base64
import binascii

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dialects.shared import media
from svc_kit.errors import InvalidField

BREAKS = st.lists(st.tuples(st.integers(0, 400), st.sampled_from(["\n", "\r\n", " ", "\t"])))


@given(raw=st.binary(min_size=1, max_size=300), breaks=BREAKS, padded=st.booleans())
def test_line_breaks_and_missing_padding_change_nothing(
    raw: bytes, breaks: list[tuple[int, str]], *, padded: bool
) -> None:
    """Wherever the breaks are."""
    text = base64.b64encode(raw).decode()
    text = text if padded else text.rstrip("=")
    for position, added in breaks:
        text = text[:position] + added + text[position:]

    assert media.decode_base64("data", text) == raw


@example(text="AAAA=")
@example(text="AAAA====")
@given(text=st.text("AQgx+/=-_ \né", max_size=12))
def test_other_text_is_refused(text: str) -> None:
    """What is accepted is what Python's decoder reads of one line with its padding, unless it has
    more of that than it needs."""
    line = "".join(text.split())
    padded = line + "=" * (-len(line) % 4)
    try:
        expected = base64.b64decode(padded, validate=True)
        is_valid = binascii.a2b_base64(padded, strict_mode=True) == expected != b""
        is_valid &= not padded.endswith("===")
    except ValueError:
        is_valid = False
    try:
        assert media.decode_base64("data", text) == expected
        was_accepted = True
    except InvalidField:
        was_accepted = False

    assert was_accepted == is_valid


@given(size=st.integers(250_000, 270_000), width=st.sampled_from([0, 64, 76]))
def test_a_long_text_is_decoded_in_pieces(size: int, width: int) -> None:
    """Of 256 Ki characters, whose borders lie anywhere in a line."""
    raw = bytes(size)
    text = base64.b64encode(raw).decode()
    lines = [text[i : i + width] for i in range(0, len(text), width)] if width else [text]

    assert media.decode_base64("data", "\r\n".join(lines)) == raw


def test_nothing_follows_the_padding() -> None:
    piece = base64.b64encode(bytes(256 * 1024 // 4 * 3 - 1)).decode()
    with pytest.raises(InvalidField):
        media.decode_base64("data", f"{piece}AAAA")

    assert piece.endswith("=")
    assert len(piece) == 256 * 1024
