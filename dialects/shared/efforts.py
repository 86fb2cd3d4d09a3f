"""Reasoning efforts, which have the same names in all dialects."""

from typing import Final, Literal, get_args

from corral.inference.v1 import chat_pb2

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: Final = dict(zip(("", *get_args(Effort)), chat_pb2.ReasoningEffort.values(), strict=True))
"""The proto values by name; empty if none is given."""
