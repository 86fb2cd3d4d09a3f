r"""Regular expressions as trees of `derivative`.

Of the syntax that Rust, Python and ECMAScript have in common: characters, classes, `.`, `\d`, `\w`,
`\s` and their opposites, groups, alternatives, repetitions. `\d` and `\w` have ASCII only here, and
so have `\D` and `\W`: a tree may be narrower than its expression, and is never wider.
"""

import re
from typing import Final

from inference_svc.structured_output.derivative import (
    EMPTY,
    Chain,
    Character,
    Choice,
    Node,
    Repeated,
    Text,
    chain,
    choice,
    optional,
)

_MAX_COPIES: Final = 100
"""Of a part that is repeated a limited number of times."""
_MAX_NODES: Final = 2000
"""Of all copies of parts together."""
_MAX_LENGTH: Final = 4096
_MAX_DEPTH: Final = 50
_GROUP: Final = re.compile(r"\((\?(:|P?<[A-Za-z_]\w*>))?", re.ASCII)
_COUNT: Final = re.compile(r"\{([0-9]{1,3})(,([0-9]{1,3})?)?\}")
_REPETITIONS: Final = frozenset("*+?{")
_CODE: Final = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})")
_CONTROLS: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_SPACES: Final = (
    *(("\t", "\r"), (" ", " "), ("\x85", "\x85"), ("\xa0", "\xa0"), ("\u1680", "\u1680")),
    *(("\u2000", "\u200a"), ("\u2028", "\u2029"), ("\u202f", "\u202f"), ("\u205f", "\u205f")),
    ("\u3000", "\u3000"),
)
_SETS: Final = {
    "d": (("0", "9"),),
    "w": (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z")),
    "s": (("\t", "\n"), ("\f", "\r"), (" ", " ")),
    "D": (("\0", "/"), (":", "\x7f")),
    "W": (("\0", "/"), (":", "@"), ("[", "^"), ("`", "`"), ("{", "\x7f")),
}
_LITERAL_IN_CLASS: Final = re.compile(r"[^\\\[\]^&~-]", re.DOTALL)


class _Unknown(Exception):
    """Something of the syntax that is not read here."""


def regex_tree(pattern: str) -> Node | None:
    """The texts that a pattern matches as a whole; None if something of it is not known here."""
    if len(pattern) > _MAX_LENGTH:
        return None
    try:
        return _Parser(pattern).whole()
    except (_Unknown, IndexError):  # IndexError: it ends too early
        return None


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = self._depth = self._num_copied = 0

    def whole(self) -> Node:
        node = self._alternatives()
        if self._at < len(self._pattern):
            raise _Unknown
        return node

    @property
    def _next(self) -> str:
        """The next character, empty at the end."""
        return self._pattern[self._at : self._at + 1]

    def _skip(self, text: str) -> bool:
        is_there = self._pattern.startswith(text, self._at)
        self._at += len(text) * is_there
        return is_there

    def _match(self, expression: re.Pattern[str]) -> re.Match[str]:
        if (found := expression.match(self._pattern, self._at)) is None:
            raise _Unknown
        self._at = found.end()
        return found

    def _alternatives(self) -> Node:
        options = [self._sequence()]
        while self._skip("|"):
            options.append(self._sequence())
        return choice(*options)

    def _sequence(self) -> Node:
        parts = []
        while self._next not in ("", "|", ")"):
            parts.append(self._repeated(self._atom()))
        return chain(*parts)

    def _repeated(self, part: Node) -> Node:
        if self._next not in _REPETITIONS or not self._next:
            return part
        if self._skip("*"):
            node: Node = Repeated(part)
        elif self._skip("+"):
            node = chain(*self._copies(part, 1), Repeated(part))
        elif self._skip("?"):
            node = optional(part)
        else:
            node = self._counted(part)
        self._skip("?")  # as few as possible: of whole matches it makes no difference
        if self._next and self._next in _REPETITIONS:
            raise _Unknown
        return node

    def _counted(self, part: Node) -> Node:
        least, comma, most = self._match(_COUNT).groups()
        count = int(least)
        if max(count, int(most or 0)) > _MAX_COPIES or (most and int(most) < count):
            raise _Unknown
        rest: Node = Repeated(part) if comma and not most else EMPTY
        for each in self._copies(part, int(most or least) - count):
            rest = optional(chain(each, rest))
        return chain(*self._copies(part, count), rest)

    def _copies(self, part: Node, count: int) -> list[Node]:
        self._num_copied += count * _size(part)
        if self._num_copied > _MAX_NODES:
            raise _Unknown
        return [part] * count

    def _atom(self) -> Node:
        character = self._pattern[self._at]
        if character == "(":
            return self._group()
        self._at += 1
        match character:
            case "[":
                return self._class()
            case ".":
                return Character((("\n", "\n"), ("\r", "\r")), is_negated=True)
            case "\\" if self._skip("S"):
                return Character(_SPACES, is_negated=True)
            case "\\":
                return _node(self._escaped())
            case "^" | "$" | "*" | "+" | "?" | "{" | "}" | "]":
                raise _Unknown
        return Text(character)

    def _group(self) -> Node:
        self._match(_GROUP)
        self._depth += 1
        if self._depth > _MAX_DEPTH or self._next == "?":
            raise _Unknown
        node = self._alternatives()
        self._depth -= 1
        if not self._skip(")"):
            raise _Unknown
        return node

    def _class(self) -> Node:
        is_negated = self._skip("^")
        ranges: list[tuple[str, str]] = []
        while not self._skip("]"):
            is_set = self._next == "\\" and self._pattern[self._at + 1] in _SETS
            first = self._class_item(is_first=not ranges)
            if is_set and is_negated:
                raise _Unknown  # an engine's set may be wider, so that its opposite is narrower
            if self._next == "-" and self._pattern[self._at + 1] != "]":
                self._at += 1
                last = self._class_item(is_first=False)
                first = (_range(first, last),)
            ranges += first
        if not ranges:
            raise _Unknown
        return Character(tuple(ranges), is_negated)

    def _class_item(self, *, is_first: bool) -> tuple[tuple[str, str], ...]:
        if self._skip("\\"):
            return self._escaped()
        if self._next == "-" and (is_first or self._pattern[self._at + 1] == "]"):
            self._at += 1
            return (("-", "-"),)
        character = self._match(_LITERAL_IN_CLASS)[0]
        return ((character, character),)

    def _escaped(self) -> tuple[tuple[str, str], ...]:
        """What follows a backslash, as ranges."""
        if self._next in ("x", "u"):
            code = chr(int("".join(each or "" for each in self._match(_CODE).groups()), 16))
            if "\ud800" <= code <= "\udfff":
                raise _Unknown
            return ((code, code),)
        character = self._pattern[self._at]
        self._at += 1
        if character in _SETS:
            return _SETS[character]
        if character in _CONTROLS:
            character = _CONTROLS[character]
        elif character.isalnum() or not character.isascii() or character in "<>":
            raise _Unknown
        return ((character, character),)


def _size(node: Node) -> int:
    match node:
        case Chain(parts) | Choice(parts):
            return 1 + sum(map(_size, parts))
        case Repeated(part):
            return 1 + _size(part)
    return 1


def _range(
    first: tuple[tuple[str, str], ...], last: tuple[tuple[str, str], ...]
) -> tuple[str, str]:
    """The range between two characters. Raises `_Unknown` if one is a set."""
    begin, end = first[0][0], last[0][0]
    if first != ((begin, begin),) or last != ((end, end),) or begin > end:
        raise _Unknown
    return begin, end


def _node(ranges: tuple[tuple[str, str], ...]) -> Node:
    (first, last), *others = ranges
    return Text(first) if first == last and not others else Character(ranges)
