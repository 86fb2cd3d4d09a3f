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


class Markers(NamedTuple):
    """The texts around a part of a turn, e.g. "<think>" and "</think>"."""

    begin: str
    end: str


class TurnFormat(NamedTuple):
    """How a model writes thinking and tool calls. None: it does not, or in no way known here."""

    reasoning: Markers | None = None
    tool_calls: Markers | None = None

    @property
    def marker_texts(self) -> tuple[str, ...]:
        """The texts that must reach the parser, also where they are control tokens."""
        return (*(self.reasoning or ()), *(self.tool_calls or ()))


_REASONING = (
    Markers("<think>", "</think>"),
    Markers("<thinking>", "</thinking>"),
    Markers("<seed:think>", "</seed:think>"),
    Markers("[THINK]", "[/THINK]"),
)
_HERMES = Markers("<tool_call>", "</tool_call>")


def choose_format(template: str) -> TurnFormat:
    """Tell from a chat template how its model writes. Hermes and Qwen write calls as JSON."""
    reasoning = next((markers for markers in _REASONING if markers.end in template), None)
    writes_json_calls = _HERMES.begin in template and "<function=" not in template
    return TurnFormat(reasoning, _HERMES if writes_json_calls else None)
