"""Deltas of a parsed turn."""

from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(slots=True)
class ToolCallPiece:
    """A piece of a tool call. `id` and `name` are set in a call's first piece only."""

    index: int
    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class TurnDelta:
    """New output of a turn, never cumulative, in this order: reasoning, content, call pieces.
    Output in another order is several deltas. `ranges` are those of the content in the text of the
    turn, in characters."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallPiece] = field(default_factory=list)
    ranges: list[tuple[int, int]] = field(default_factory=list)


class Markers(NamedTuple):
    """The texts around a part of a turn, e.g. "<think>" and "</think>"."""

    begin: str
    end: str
