"""GBNF as llama.cpp reads it, where llguidance translates another language or none.

It writes code points without their leading zeros (`"\\u0041bc"` becomes U+41BC), `.` as that of a
regular expression, which matches no line break, and knows no `\\-`.
"""

import re

from llguidance import grammar_from
from llguidance.gbnf_to_lark import is_lark_syntax

# A text, a class, a comment, or any character; what is not closed goes on to the end.
_PART = re.compile(r'"(?:\\.|[^"\\])*"?|\[(?:\\.|[^\]\\])*\]?|#[^\r\n]*|\.', re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)
_ANY_CHARACTER = "[\\x00-\U0010ffff]"


def lark_of_gbnf(text: str) -> str:
    """The same grammar in Lark, which callers may have written in place of GBNF. Raises
    `ValueError`."""
    if not is_lark_syntax(text):
        text = _PART.sub(_translatable, text)
    return grammar_from("gbnf", text)


def _translatable(part: re.Match[str]) -> str:
    return _ANY_CHARACTER if part[0] == "." else _ESCAPE.sub(_character, part[0])


def _character(escape: re.Match[str]) -> str:
    """What may have a meaning of its own stays escaped; what is no character, for the refusal."""
    if len(escape[1]) == 1:
        return r"\x2d" if escape[1] == "-" else escape[0]
    code = int(escape[1][1:], 16)
    if code < 0x80:
        return f"\\x{code:02x}"
    is_character = code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF
    return chr(code) if is_character else escape[0]
