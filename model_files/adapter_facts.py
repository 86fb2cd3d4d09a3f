"""Metadata of an adapter file."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFacts:
    architecture: str
    """Architecture of the base model."""
    base_model: str
    """Name of the base model; empty if unknown."""
    rank: int
    """The largest rank of its matrices."""
    size_bytes: int
    """Size of its weights."""
    title: str
    """Its `general.name`; empty if it has none."""
