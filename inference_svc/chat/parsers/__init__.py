"""Reads an assistant's raw text: content, reasoning, tool calls."""

from inference_svc.chat.parsers.parser import TurnParser, new_call_id
from inference_svc.chat.parsers.turn import (
    Markers,
    ToolCallPiece,
    TurnDelta,
    TurnFormat,
    choose_format,
)

__all__ = [
    "Markers",
    "ToolCallPiece",
    "TurnDelta",
    "TurnFormat",
    "TurnParser",
    "choose_format",
    "new_call_id",
]
