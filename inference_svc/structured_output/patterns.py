"""Patterns of JSON Schema as Rust's regular expressions, which llguidance reads.

Classes are those of ECMAScript: `[`, `&&`, `--` and `~~` are only characters in them. As in Python
and Rust, a `]` at the start of one is a character too.
"""

import re

_CATEGORY = r"\\[pP](?:\{[^}]*\}|.)"
_ATOM = rf"{_CATEGORY}|\\.|\[:\^?[a-z]+:\]"
_CLASS = rf"\[\^?\]?(?:{_ATOM}|[^\]\\])*+\]?"  # an unclosed one extends to the end
_FLAGS = r"\(\?[a-zA-Z-]+\)"  # up to the end of the group that they are in
_GROUP = r"\((?:\?(?:P?<\w+>|[a-zA-Z-]*:))?"
_PART = re.compile(rf"{_CATEGORY}|\\.|{_CLASS}|{_FLAGS}|{_GROUP}|.", re.DOTALL)
_ITEM = re.compile(rf"({_ATOM}|.)(?:-({_ATOM}|.))?", re.DOTALL)
"""A character or class in a class, or a range."""
_LARGE_CLASS = re.compile(r"\\[pP]|\[\^|\[.*(\x00|\\x00|\\u0000|\\[pP])", re.DOTALL)
"""Begins a character class that may have all control characters."""
_SET = re.compile(r"\\[dDwWsSpP]|\[:")
_ASCII = {r"\d": "0-9", r"\w": "A-Za-z0-9_", r"\D": "[^0-9]", r"\W": "[^A-Za-z0-9_]"}
_EDGE = re.compile(rf"\^|{_FLAGS}")
_OTHER_FLAGS = re.compile(r"\(\?[a-zA-Z]*[mx]")
"""Begins a group where `^`, `$` or `|` mean something else."""
_REPETITIONS = ("*", "+", "?", "{")
_ANYTHING = "(?s:.*)"
_UNFINISHED = r"\x"
"""As wrong as a backslash at the end, which llguidance leaves out."""
_EDGES = {r"\A": "^", r"\z": "$"}
_ANCHORS = ("^", "$", r"\A", r"\z", r"\b", r"\B")


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
    parts = list(map(_in_ascii, _PART.findall(pattern)))
    if any(map(_OTHER_FLAGS.match, parts)):
        return f"{_ANYTHING}({''.join(parts)}){_ANYTHING}"
    return _Whole([_EDGES.get(part, part) for part in parts]).text or "()"


def left_anchor(whole: str) -> str:
    """The first anchor in what `whole_pattern` wrote, which then cannot be matched; or ""."""
    return next((part for part in _PART.findall(whole) if part in _ANCHORS), "")


def _rust_part(part: str) -> str:
    if part in (r"\<", r"\>"):
        return part[1:]
    if part == "\\":
        return _UNFINISHED
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


def _in_ascii(part: str) -> str:
    if part.startswith("["):
        return re.sub(r"\\.", lambda each: _ASCII.get(each[0], each[0]), part, flags=re.DOTALL)
    return f"[{_ASCII[part]}]" if part in _ASCII else part


class _Whole:
    """Writes a pattern with any text before and behind it, where it has no `^` or `$`. If these are
    in a group at its edge, that text is in the alternatives of the group."""

    def __init__(self, parts: list[str]) -> None:
        self._parts = parts
        self._partners: dict[int, int] = {}
        """Where the other parenthesis of a group is."""
        opened: list[int] = []
        for place, part in enumerate(parts):
            if part[0] == "(" and part[-1] != ")":
                opened.append(place)
            elif part == ")" and opened:
                begin = opened.pop()
                self._partners |= {begin: place, place: begin}

    @property
    def text(self) -> str:
        return self._any_of(0, len(self._parts), _ANYTHING, _ANYTHING)

    def _any_of(self, begin: int, end: int, before: str | None, behind: str | None) -> str:
        """Alternatives, with the texts around them; None if these are parts of the pattern."""
        texts, place = [], begin
        while place < end:
            if self._parts[place] == "|":
                texts.append(self._sequence(begin, place, before, behind))
                begin = place + 1
            place = max(self._partners.get(place, place), place) + 1
        return "|".join([*texts, self._sequence(begin, end, before, behind)])

    def _sequence(self, begin: int, end: int, before: str | None, behind: str | None) -> str:
        parts, flags, first, last = self._parts, "", "", ""
        while before is not None and begin < end and _EDGE.match(parts[begin]):
            before = "" if parts[begin] == "^" else before
            flags += parts[begin].strip("^")
            begin += 1
        while behind is not None and begin < end and parts[end - 1] == "$":
            behind, end = "", end - 1
        close = self._partners.get(begin, end) + 1
        is_repeated = close < end and parts[close] in _REPETITIONS
        if before is not None and close <= end and not is_repeated and "^" in parts[begin:close]:
            is_last = close == end
            inside = self._any_of(begin + 1, close - 1, before, behind if is_last else None)
            first, before, behind = f"{parts[begin]}{inside})", "", "" if is_last else behind
            begin = close
        opening = self._partners.get(end - 1, end)
        if behind is not None and begin <= opening and "$" in parts[opening:end]:
            inside = self._any_of(opening + 1, end - 1, None, behind)
            last, behind, end = f"{parts[opening]}{inside})", "", opening
        middle = "".join(parts[begin:end])
        return f"{before or ''}{flags}{first}{middle}{last}{behind or ''}"
