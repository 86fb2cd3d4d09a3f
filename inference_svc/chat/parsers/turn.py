"""What an assistant's turn is parsed into, piece by piece."""

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
    """What a turn gained; never cumulative."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallPiece, ...] = ()

    def then(self, later: "TurnDelta") -> "TurnDelta":
        """This and what the turn gained next, as one."""
        return TurnDelta(
            self.content + later.content,
            self.reasoning + later.reasoning,
            self.tool_calls + later.tool_calls,
        )


class Markers(NamedTuple):
    """The texts around a part of a turn, e.g. "<think>" and "</think>"."""

    begin: str
    end: str
