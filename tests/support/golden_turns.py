"""Loads the corpus of the parsers' tests: outputs of each model family and their parsed turns.

`tests/data/turns/<family>.json` names the formats of the family and lists its turns: the text, the
expected content, reasoning and calls, and what differs from the defaults of `Golden`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from inference_svc.chat.parsers.formats import ReasoningFormat, ToolCallFormat, TurnFormat
from inference_svc.chat.parsers.turn import Markers
from tests.support.turns import NO_TOOLS, TOOLS, Golden, Parsed

FOLDER: Final = Path(__file__).parents[1] / "data" / "turns"


def _load(path: Path) -> list[Golden]:
    family = json.loads(path.read_text(encoding="utf-8"))
    return [_golden(turn, family) for turn in family["turns"]]


def _golden(turn: dict[str, Any], family: dict[str, Any]) -> Golden:
    turn_format = TurnFormat(
        ReasoningFormat(turn.get("reasoning_format", family["reasoning"])),
        ToolCallFormat(family["tool_calls"]),
        turn.get("starts_in_reasoning", False),
        Markers(*turn.get("answer", ("", ""))),
    )
    calls = tuple((name, arguments) for name, arguments in turn.get("calls", ()))
    return Golden(
        turn["label"],
        turn_format,
        turn["text"],
        Parsed(turn.get("content", ""), turn.get("reasoning", ""), calls),
        TOOLS if turn.get("has_tools", True) else NO_TOOLS,
        turn.get("opens_in_reasoning", False),
        turn.get("inline_reasoning", False),
    )


GOLDEN: Final[Mapping[str, list[Golden]]] = {
    path.stem: _load(path) for path in sorted(FOLDER.glob("*.json"))
}
"""The turns by family."""
