"""Facts about an adapter's file."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFacts:
    """What an adapter's file says by itself."""

    architecture: str
    """That of the model it was made for."""
    base_model: str
    """The name of that model; empty: it does not say."""
    rank: int
    """Its largest rank."""
    size_bytes: int
    """The bytes of its weights."""
    title: str
    """Its own name; empty: it has none."""
