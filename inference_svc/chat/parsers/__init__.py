"""Parsers of assistant output: content, reasoning, tool calls."""

from inference_svc.chat.parsers.formats import (
    FormatOverride,
    ReasoningFormat,
    ToolCallFormat,
    TurnFormat,
    detect_format,
)
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.parser import TurnParser, new_call_id
from inference_svc.chat.parsers.turn import ToolCallPiece, TurnDelta

__all__ = [
    "FormatOverride",
    "OfferedTools",
    "ReasoningFormat",
    "ToolCallFormat",
    "ToolCallPiece",
    "TurnDelta",
    "TurnFormat",
    "TurnParser",
    "detect_format",
    "new_call_id",
]
