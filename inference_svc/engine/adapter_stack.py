"""Which LoRA adapters a sequence computes with.

A stack is a set, not a list: llama.cpp adds what each adapter adds, in an order of its own.
Adapters are known by the digests of their files, so that one file under two names is one adapter
here.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class AppliedAdapter(NamedTuple):
    """An adapter by the SHA-256 of its file, in hex, and what its effect is multiplied by."""

    digest: str
    scale: float


AdapterStack = tuple[AppliedAdapter, ...]
BASE: AdapterStack = ()


def stack_of(applied: Iterable[AppliedAdapter]) -> AdapterStack:
    """The stack in its one form, by which it is compared and keyed: sorted, an adapter that comes
    twice once with the sum of its scales (the effect is linear), none at scale 0."""
    scales: dict[str, float] = defaultdict(float)
    for adapter in applied:
        scales[adapter.digest] += adapter.scale
    return tuple(AppliedAdapter(digest, scale) for digest, scale in sorted(scales.items()) if scale)


class LoadAdapter(NamedTuple):
    """Read an adapter's file, which was checked before; `AdapterLoaded` or `AdapterFailed`
    answers."""

    model: str
    digest: str
    path: Path


class UnloadAdapter(NamedTuple):
    """Free an adapter that no sequence uses any more; an unknown one is no error."""

    model: str
    digest: str
