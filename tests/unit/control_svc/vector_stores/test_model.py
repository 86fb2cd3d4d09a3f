"""Whose vectors a store takes, and compares with its own."""

from datetime import UTC, datetime

import pytest

from control_svc.vector_stores.model import VectorStore
from svc_kit.errors import EmbeddingModelChanged

START = datetime(2026, 1, 1, tzinfo=UTC)


def a_store(digest: str, model: str = "m") -> VectorStore:
    """A store that has vectors."""
    return VectorStore(
        id="vs_1",
        name="",
        embedding_model=model,
        embedding_digest=digest,
        dimensions=8,
        created_at=START,
        active_at=START,
    )


def test_the_first_vectors_decide() -> None:
    """All of what tells models apart."""
    empty = VectorStore(id="vs_1", name="", created_at=START, active_at=START)

    assert empty.embedded_by("m", "a", 8) == a_store("a")


def test_a_store_of_before_digests_learns_its_own() -> None:
    """It can be searched as before; the next vectors say which file they are of, for good."""
    old = a_store("")
    old.check_space("m", "a", 8)
    learned = old.embedded_by("m", "a", 8)

    assert learned == a_store("a")
    assert learned.embedded_by("m", "", 8) == learned  # an engine that does not say
    with pytest.raises(EmbeddingModelChanged):
        learned.check_space("m", "b", 8)


@pytest.mark.parametrize("other", [("n", "a", 8), ("m", "b", 8), ("m", "a", 9), ("n", "", 8)])
def test_other_vectors_are_refused(other: tuple[str, str, int]) -> None:
    """In searches and beside those that are there."""
    store = a_store("a")

    for use in (store.check_space, store.embedded_by):
        with pytest.raises(EmbeddingModelChanged):
            use(*other)
