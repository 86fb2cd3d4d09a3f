"""Prefixes in memory."""

from array import array

import pytest

from inference_svc.engine.kv_cache.prefix_cache import PrefixCache
from inference_svc.engine.saved_state import SavedPrefix


def _entry(
    tokens: list[int], size: int = 10, *, key: bytes = b"k", min_tokens: int = 0
) -> SavedPrefix:
    return SavedPrefix(key, array("i", tokens), bytearray(size), min_tokens)


def test_the_longest_prefix_of_the_key_is_found() -> None:
    """Prefixes of other keys are ignored."""
    saved = PrefixCache(100)
    short, long = _entry([1, 2, 9]), _entry([1, 2, 3, 8])
    for entry in (short, long, _entry([1, 2, 3, 4], key=b"theirs")):
        saved.put(entry)

    assert saved.find(array("i", [1, 2, 3, 4, 5]), b"k", limit=4) == (long, 3)
    assert saved.find(array("i", [1, 2, 3, 4, 5]), b"nobody", limit=4) == (None, 0)


@pytest.mark.parametrize("min_tokens", [2, 3])
def test_a_state_serves_only_prompts_with_enough_of_its_tokens(min_tokens: int) -> None:
    """Recurrent states cannot be truncated, those of sliding windows by one token."""
    saved = PrefixCache(100)
    saved.put(_entry([1, 2, 3], min_tokens=min_tokens))

    assert saved.find(array("i", [1, 9, 9, 9]), b"k", limit=3)[1] == 0
    assert saved.find(array("i", [1, 2, 9, 9]), b"k", limit=3)[1] == (2 if min_tokens == 2 else 0)
    assert saved.find(array("i", [1, 2, 3, 9]), b"k", limit=3)[1] == 3


def test_a_longer_state_does_not_replace_what_it_cannot_serve() -> None:
    """Both the start of a conversation and the rest of it stay reusable."""
    saved = PrefixCache(100)
    saved.put(_entry([1, 2], min_tokens=2))
    saved.put(_entry([1, 2, 3, 4], min_tokens=3))
    saved.put(_entry([1, 2, 3, 4], min_tokens=3))

    assert len(saved) == 2
    assert _gives(saved, [1, 2])
    assert _gives(saved, [1, 2, 3, 4])


def _gives(saved: PrefixCache, tokens: list[int]) -> bool:
    return saved.find(array("i", tokens), b"k", limit=len(tokens))[1] == len(tokens)


def test_the_least_recently_used_entry_is_evicted() -> None:
    """Limits apply to bytes and to entries."""
    saved = PrefixCache(25, max_entries=2)
    first, second, third = _entry([1, 2]), _entry([3, 4]), _entry([5, 6])
    saved.put(first)
    saved.put(second)
    saved.record_hit(first)
    saved.put(third)

    assert (len(saved), saved.num_bytes) == (2, 20)
    assert not _gives(saved, [3, 4])
    saved.put(_entry([7, 8], size=24))
    assert (len(saved), saved.num_bytes) == (1, 24)


def test_a_longer_prefix_replaces_its_beginning() -> None:
    """A conversation is stored once."""
    saved = PrefixCache(100)
    saved.put(_entry([1, 2]))
    saved.put(_entry([1, 2, 3]))

    assert len(saved) == 1
    assert _gives(saved, [1, 2])


def test_an_entry_over_the_limit_evicts_nothing() -> None:
    """Existing entries stay."""
    saved = PrefixCache(20)
    saved.put(_entry([1, 2]))
    saved.put(_entry([3, 4], size=21))

    assert _gives(saved, [1, 2])
    assert not _gives(saved, [3, 4])


def test_reserved_bytes_evict_prefixes_and_are_bounded() -> None:
    """They stay reserved until they are released."""
    saved = PrefixCache(25)
    saved.put(_entry([1, 2]))

    assert saved.reserve(20)
    assert (len(saved), saved.num_bytes) == (0, 20)
    assert not saved.reserve(10)
    saved.put(_entry([1, 2]))
    assert len(saved) == 0
    saved.release(20)
    saved.put(_entry([1, 2]))
    assert saved.clear() == 2
    assert saved.num_bytes == 0
