"""Facts about an adapter's file."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFacts:
    """Facts from an adapter's file."""

    architecture: str
    """That of the model it was made for."""
    base_model: str
    """The name of the base model; empty if unknown."""
    rank: int
    """Its largest rank."""
    size_bytes: int
    """The bytes of its weights."""
    title: str
    """Its own name; empty: it has none."""
