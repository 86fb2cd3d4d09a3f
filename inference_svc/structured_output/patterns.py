"""Patterns of JSON Schema as Rust's regular expressions, which llguidance reads.

Classes are those of ECMAScript: `[`, `&&`, `--` and `~~` are only characters in them. As in Python
and Rust, a `]` at the start of one is a character too.
"""

import re
from collections.abc import Iterator

_CATEGORY = r"\\[pP](?:\{[^}]*\}|.)"
_ATOM = rf"{_CATEGORY}|\\.|\[:\^?[a-z]+:\]"
_CLASS = rf"\[\^?\]?(?:{_ATOM}|[^\]\\])*+\]?"  # an unclosed one extends to the end
_PART = re.compile(rf"{_CATEGORY}|\\.|{_CLASS}|.", re.DOTALL)
_ITEM = re.compile(rf"({_ATOM}|.)(?:-({_ATOM}|.))?", re.DOTALL)
"""A character or class in a class, or a range."""
_LARGE_CLASS = re.compile(r"\\[pP]|\[\^|\[.*(\x00|\\x00|\\u0000|\\[pP])", re.DOTALL)
"""Begins a character class that may have all control characters."""
_SET = re.compile(r"\\[dDwWsSpP]|\[:")
_ASCII = {r"\d": "0-9", r"\w": "A-Za-z0-9_", r"\D": "[^0-9]", r"\W": "[^A-Za-z0-9_]"}
_GROUP = re.compile(r"\((?:\?:|\?P?<\w+>)?", re.ASCII)


def rust_pattern(pattern: str) -> str:
    """A pattern in Rust's syntax."""
    return "".join(map(_rust_part, _PART.findall(pattern)))


def without_nul(pattern: str) -> str:
    """A pattern of Rust's without NUL in its large classes. llguidance lets a class with all
    control characters match every escaped character, such as \\" for [^"]."""
    return "".join(
        rf"[{part}&&[^\x00]]" if _LARGE_CLASS.match(part) else part
        for part in _PART.findall(pattern)
    )


def whole_pattern(pattern: str) -> str:
    """The pattern of Rust's of the whole texts in which one is found, with digits and letters as in
    ECMAScript."""
    return "|".join(map(_whole_branch, _branches(_PART.findall(pattern))))


def _rust_part(part: str) -> str:
    if part in (r"\<", r"\>"):
        return part[1:]
    if len(part) < 2 or part[0] != "[" or part[-1] != "]":
        return part
    begin = "[^" if part.startswith("[^") and len(part) > len("[^]") else "["
    return f"{begin}{_ITEM.sub(_rust_item, part[len(begin) : -1])}]"


def _rust_item(item: re.Match[str]) -> str:
    first, last = item.groups()
    if last is None:
        return _literal(first)
    dash = r"\-" if _SET.match(first) or _SET.match(last) else "-"
    return f"{_literal(first)}{dash}{_literal(last)}"


def _literal(atom: str) -> str:
    if atom in (r"\<", r"\>"):
        return atom[1:]
    return f"\\{atom}" if atom in ("[", "]", "&", "~", "-") else atom


def _branches(parts: list[str]) -> Iterator[list[str]]:
    """The alternatives of a pattern, also those of a group that is a whole one."""
    branch: list[str] = []
    depth = 0
    found = [branch]
    for part in parts:
        depth += (part == "(") - (part == ")")
        if part == "|" and depth == 0:
            branch = []
            found.append(branch)
        else:
            branch.append(part)
    for each in found:
        inner = _inside_group(each)
        if inner is None:
            yield each
        else:
            yield from _branches(inner)


def _inside_group(branch: list[str]) -> list[str] | None:
    """The parts inside of the group that a branch consists of; None if it is more than one."""
    text = "".join(branch)
    group = _GROUP.match(text)
    if group is None or branch[-1] != ")":
        return None
    inner = _PART.findall(text[group.end() : -1])
    depth = 0
    for part in inner:
        depth += (part == "(") - (part == ")")
        if depth < 0:
            return None
    return None if inner[:1] == ["?"] else inner


def _whole_branch(parts: list[str]) -> str:
    is_start, is_end = parts[:1] == ["^"], parts[-1:] == ["$"]
    inner = "".join(map(_in_ascii, parts[is_start : len(parts) - is_end]))
    return f"{'' if is_start else '(?s:.*)'}({inner}){'' if is_end else '(?s:.*)'}"


def _in_ascii(part: str) -> str:
    if part.startswith("["):
        return re.sub(r"\\.", lambda each: _ASCII.get(each[0], each[0]), part, flags=re.DOTALL)
    return f"[{_ASCII[part]}]" if part in _ASCII else part
