"""Deltas of a parsed turn."""

from dataclasses import dataclass, replace
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class ToolCallPiece:
    """A piece of a tool call. `id` and `name` are set in a call's first piece only."""

    index: int
    id: str
    name: str
    arguments: str


class TurnDelta(NamedTuple):
    """New content, reasoning and call pieces of a turn; never cumulative."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallPiece, ...] = ()

    def then(self, later: "TurnDelta") -> "TurnDelta":
        """Join this delta and the next one."""
        return TurnDelta(
            self.content + later.content,
            self.reasoning + later.reasoning,
            _join(self.tool_calls, later.tool_calls),
        )


def _join(
    pieces: tuple[ToolCallPiece, ...], later: tuple[ToolCallPiece, ...]
) -> tuple[ToolCallPiece, ...]:
    """Join consecutive pieces of the same call."""
    joined = list(pieces)
    for piece in later:
        if joined and joined[-1].index == piece.index and not piece.id:
            arguments = joined[-1].arguments + piece.arguments
            joined[-1] = replace(joined[-1], arguments=arguments)
        else:
            joined.append(piece)
    return tuple(joined)


class Markers(NamedTuple):
    """The texts around a part of a turn, e.g. "<think>" and "</think>"."""

    begin: str
    end: str
