"""Text of others for terminals and logs."""

import unicodedata
from typing import Final

_ESCAPED: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of control characters, of those that turn the direction of text or have no width, of
lone surrogates, and of ends of lines."""


def escape(text: str, kept: str = "") -> str:
    """Replace by its number what a terminal would obey, or a reader would not see. `kept` are
    exceptions."""
    if text.isprintable():
        return text
    return "".join(
        each.encode("unicode_escape").decode()
        if unicodedata.category(each) in _ESCAPED and each not in kept
        else each
        for each in text
    )
