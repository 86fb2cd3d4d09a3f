"""Reasoning efforts, which have the same names in all dialects."""

from collections.abc import Mapping
from typing import Final, Literal

from corral.inference.v1 import chat_pb2

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: Final[Mapping[str, chat_pb2.ReasoningEffort]] = {
    "": chat_pb2.REASONING_EFFORT_UNSPECIFIED,
    "none": chat_pb2.REASONING_EFFORT_NONE,
    "minimal": chat_pb2.REASONING_EFFORT_MINIMAL,
    "low": chat_pb2.REASONING_EFFORT_LOW,
    "medium": chat_pb2.REASONING_EFFORT_MEDIUM,
    "high": chat_pb2.REASONING_EFFORT_HIGH,
    "xhigh": chat_pb2.REASONING_EFFORT_XHIGH,
    "max": chat_pb2.REASONING_EFFORT_MAX,
}
"""The proto values by name; empty if none is given."""
