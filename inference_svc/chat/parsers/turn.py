"""Deltas of a parsed turn."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class ToolCallPiece:
    """A piece of a tool call. `id` and `name` are set in a call's first piece only."""

    index: int
    id: str
    name: str
    arguments: str


class TurnDelta(NamedTuple):
    """New content, reasoning and call pieces of a turn; never cumulative. `ranges` are those of the
    content in the text of the turn, in characters."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallPiece, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()


class Markers(NamedTuple):
    """The texts around a part of a turn, e.g. "<think>" and "</think>"."""

    begin: str
    end: str
