"""Model outputs and the turns they are parsed into."""

import itertools
import json
from collections.abc import Iterable
from typing import NamedTuple

from inference_svc.chat.parsers.formats import TurnFormat
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.parser import TurnParser
from inference_svc.chat.parsers.turn import TurnDelta
from inference_svc.engine.detokenizer import Detokenizer

TOOLS = OfferedTools(
    {
        "get_weather": json.dumps(
            {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "units": {"enum": ["C", "F"]},
                    "exact": {"type": ["boolean", "null"]},
                    "places": {"type": "array"},
                    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                },
            }
        ),
        "get_time": "",
        "python": '{"type": "object", "properties": {"code": {"type": "string"}}}',
    }
)
NO_TOOLS = OfferedTools({})


class Parsed(NamedTuple):
    """A whole turn: content, reasoning, and (name, arguments) of each call."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()


class Golden(NamedTuple):
    label: str
    turn_format: TurnFormat
    text: str
    expected: Parsed
    tools: OfferedTools = TOOLS
    opens_in_reasoning: bool = False
    inline_reasoning: bool = False

    def parser(self) -> TurnParser:
        """Create a parser with call ids "id1", "id2" and so on."""
        numbers = itertools.count(1)
        return TurnParser(
            self.turn_format,
            tools=self.tools,
            opens_in_reasoning=self.opens_in_reasoning,
            inline_reasoning=self.inline_reasoning,
            new_call_id=lambda: f"id{next(numbers)}",
        )

    def parse(self, pieces: Iterable[str]) -> Parsed:
        parser = self.parser()
        deltas = [feed(parser, piece) for piece in pieces]
        return merge_deltas([*deltas, finish(parser)])


def feed(parser: TurnParser, text: str) -> TurnDelta:
    parser.feed(text)
    return pop_joined(parser)


def finish(parser: TurnParser) -> TurnDelta:
    parser.finish()
    return pop_joined(parser)


def pop_joined(parser: TurnParser) -> TurnDelta:
    """The new output of a parser as one delta, without its order."""
    joined = TurnDelta()
    for delta in parser.pop_deltas():
        joined.content += delta.content
        joined.reasoning += delta.reasoning
        joined.tool_calls += delta.tool_calls
        joined.ranges += delta.ranges
    return joined


def merge_deltas(deltas: list[TurnDelta]) -> Parsed:
    """Merge deltas as a client does, and check the invariants that clients rely on."""
    calls: list[tuple[str, str]] = []
    ids: list[str] = []
    for piece in (piece for delta in deltas for piece in delta.tool_calls):
        if piece.id:
            assert piece.index == len(calls)
            assert piece.name
            ids.append(piece.id)
            calls.append((piece.name, piece.arguments))
        else:
            assert piece.index == len(calls) - 1
            assert not piece.name
            assert piece.arguments
            name, arguments = calls[-1]
            calls[-1] = (name, arguments + piece.arguments)
    assert len(set(ids)) == len(ids)
    content = "".join(delta.content for delta in deltas)
    return Parsed(content, "".join(delta.reasoning for delta in deltas), tuple(calls))


def decode_pieces(pieces: Iterable[bytes]) -> list[str]:
    """Decode pieces as the engine does, which buffers incomplete characters."""
    stream = Detokenizer()
    texts = [stream.push(piece) for piece in pieces]
    return [*texts, stream.finish()]
