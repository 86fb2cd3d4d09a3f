"""What the trainer never sees: a part of all questions, chosen by the hash of their keys.

The corpus leaves these questions out and the evaluation asks nothing else, so that no list of test
items has to be kept, and nobody can move an item from one side to the other.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import Protocol, TypeVar

_ONE_IN = 12


class Keyed(Protocol):
    """What has a key."""

    @property
    def key(self) -> str:
        """Names the question."""
        ...


T = TypeVar("T", bound=Keyed)


def is_held_out(key: str) -> bool:
    """Whether the trainer never sees what has this key. Without a key it is common property."""
    digest = blake2b(key.encode(), digest_size=4).digest()
    return bool(key) and int.from_bytes(digest, "big") % _ONE_IN == 0


def draw_held_out(make: Callable[[], T | None]) -> T:
    """Make things until one is held out."""
    while True:
        made = make()
        if made is not None and is_held_out(made.key):
            return made
