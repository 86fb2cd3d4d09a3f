"""Train/test split: one question in twelve is held out, chosen by the hash of its key.

The corpus excludes held-out questions and the examination uses only these, without a stored list of
test items.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import Protocol, TypeVar

_ONE_IN = 12


class Keyed(Protocol):
    """An object with a key."""

    @property
    def key(self) -> str:
        """Identifies the question."""
        ...


T = TypeVar("T", bound=Keyed)


def is_held_out(key: str) -> bool:
    """Whether the question with this key is excluded from training. An empty key never is."""
    digest = blake2b(key.encode(), digest_size=4).digest()
    return bool(key) and int.from_bytes(digest, "big") % _ONE_IN == 0


def draw_held_out(make: Callable[[], T | None]) -> T:
    """Call `make` until it returns a held-out object."""
    while True:
        made = make()
        if made is not None and is_held_out(made.key):
            return made
