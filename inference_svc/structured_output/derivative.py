"""Languages as trees, what of them may follow a text (Brzozowski's derivative), and their GBNF.

A tree may refer to rules, none of which may begin with itself.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final


@dataclass(frozen=True, slots=True)
class Text:
    """A text of at least one character."""

    text: str


@dataclass(frozen=True, slots=True)
class Character:
    """One character of these ranges, or one that is in none of them."""

    ranges: tuple[tuple[str, str], ...]
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class _Inner:
    """A node with others in it. Its hash is computed once, since each choice around it needs it."""

    __match_args__: ClassVar[tuple[str, ...]]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        values = tuple(getattr(self, name) for name in self.__match_args__)
        object.__setattr__(self, "_hash", hash((type(self), values)))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Chain(_Inner):
    """Parts that follow each other. Without any it is the empty text."""

    parts: "tuple[Node, ...]"
    __hash__ = _Inner.__hash__


@dataclass(frozen=True, slots=True)
class Choice(_Inner):
    """One of several. Without any no text belongs to it."""

    options: "tuple[Node, ...]"
    __hash__ = _Inner.__hash__


@dataclass(frozen=True, slots=True)
class Repeated(_Inner):
    """A part any number of times."""

    part: "Node"
    __hash__ = _Inner.__hash__


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule by its name, of letters and digits."""

    name: str


_MAX_DERIVED: Final = 100_000
"""Nodes of which the derivative is found for a text, and as many for each of its characters as JSON
needs twice: they take about a second."""
_DERIVED_PER_CHARACTER: Final = 40
_COPIED_PER_DERIVED: Final = 16
"""So many parts of a chain are copied in the time of a derivative."""
Node = Text | Character | Chain | Choice | Repeated | Rule
EMPTY: Final = Chain(())
NOTHING: Final = Choice(())


def chain(*parts: Node) -> Node:
    """Parts that follow each other, in the simplest form."""
    flat: list[Node] = []
    for part in parts:
        if part == NOTHING:
            return NOTHING
        flat += part.parts if isinstance(part, Chain) else (part,)
    return flat[0] if len(flat) == 1 else Chain(tuple(flat))


def choice(*options: Node) -> Node:
    """One of several, in the simplest form."""
    flat: dict[Node, None] = {}
    for option in options:
        flat |= dict.fromkeys(option.options if isinstance(option, Choice) else (option,))
    return next(iter(flat)) if len(flat) == 1 else Choice(tuple(flat))


def optional(node: Node) -> Node:
    return choice(EMPTY, node)


class Language:
    """The trees over some rules."""

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self._rules = rules
        self._num_derived = 0

    def after(self, node: Node, text: str) -> Node:
        """What may follow a text, `NOTHING` if it does not begin one of the language, or if the
        way there is too long."""
        self._num_derived = -_DERIVED_PER_CHARACTER * len(text)
        for character in text:
            if node == NOTHING:
                break
            node = self._derive(node, character)
        return NOTHING if self._num_derived > _MAX_DERIVED else node

    def may_end(self, node: Node) -> bool:
        """Whether the empty text belongs to it."""
        match node:
            case Chain(parts):
                return all(map(self.may_end, parts))
            case Choice(options):
                return any(map(self.may_end, options))
            case Rule(name):
                return self.may_end(self._rules[name])
        return isinstance(node, Repeated)

    def _derive(self, node: Node, character: str) -> Node:
        self._num_derived += 1
        if self._num_derived > _MAX_DERIVED:
            return NOTHING
        match node:
            case Text(text):
                if text[0] != character:
                    return NOTHING
                return Text(text[1:]) if len(text) > 1 else EMPTY
            case Character(ranges, is_negated):
                is_in = any(first <= character <= last for first, last in ranges)
                return EMPTY if is_in != is_negated else NOTHING
            case Chain(parts):
                return choice(*self._derive_chain(parts, character))
            case Choice(options):
                return choice(*(self._derive(each, character) for each in options))
            case Repeated(part):
                return chain(self._derive(part, character), node)
            case Rule(name):
                return self._derive(self._rules[name], character)

    def _derive_chain(self, parts: tuple[Node, ...], character: str) -> Iterator[Node]:
        for index, part in enumerate(parts):
            self._num_derived += (len(parts) - index) // _COPIED_PER_DERIVED
            yield chain(self._derive(part, character), *parts[index + 1 :])
            if not self.may_end(part):
                return

    def gbnf(self, root: Node, max_characters: int) -> str | None:
        """The grammar of a language; None if it has more characters."""
        lines, size, pending = dict[str, str](), 0, {"root": root}
        while pending:
            name, node = pending.popitem()
            pieces = [f"{name} ::= "]
            for piece in _gbnf(node):
                pieces.append(piece)
                size += len(piece)
                if size > max_characters:
                    return None
            lines[name] = "".join(pieces)
            pending |= {each: self._rules[each] for each in _rules_in(node) if each not in lines}
        return "\n".join(lines.values())


def _rules_in(node: Node) -> Iterator[str]:
    match node:
        case Rule(name):
            yield name
        case Chain(parts) | Choice(parts):
            for part in parts:
                yield from _rules_in(part)
        case Repeated(part):
            yield from _rules_in(part)


def _gbnf(node: Node) -> Iterator[str]:
    match node:
        case Text(text):
            yield gbnf_text(text)
        case Character(ranges, is_negated):
            spans = (f"{_escape(first)}-{_escape(last)}" for first, last in ranges)
            yield f"[{'^' if is_negated else ''}{''.join(spans)}]"
        case Chain(parts):
            yield from _joined(parts, " ") if parts else ('""',)
        case Choice(options):
            yield "("
            yield from _joined(options, " | ")
            yield ")"
        case Repeated(part):
            yield "("
            yield from _gbnf(part)
            yield ")*"
        case Rule(name):
            yield name


def _joined(nodes: Iterable[Node], separator: str) -> Iterator[str]:
    for index, node in enumerate(nodes):
        if index:
            yield separator
        yield from _gbnf(node)


def gbnf_text(text: str) -> str:
    """A text in quotes."""
    return '"' + "".join(_gbnf_character(each) for each in text) + '"'


def _gbnf_character(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else _escape(character)


def _escape(character: str) -> str:
    """A character in brackets. llguidance does not read longer escapes."""
    if character >= "\u0100" or (character.isascii() and character.isalnum()):
        return character
    return f"\\x{ord(character):02X}"
