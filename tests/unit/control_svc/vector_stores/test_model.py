"""Checks that vectors of a store are of one model."""

from datetime import UTC, datetime

import pytest

from control_svc.vector_stores.model import VectorStore
from svc_kit.errors import EmbeddingModelChanged

START = datetime(2026, 1, 1, tzinfo=UTC)


def make_store(digest: str) -> VectorStore:
    return VectorStore(
        id="vs_1",
        name="",
        embedding_model="m",
        embedding_digest=digest,
        dimensions=8,
        created_at=START,
        active_at=START,
    )


def test_the_first_vectors_determine_the_model() -> None:
    """Its name, digest and dimensions."""
    empty = VectorStore(id="vs_1", name="", created_at=START, active_at=START)

    assert empty.pin_embedding("m", "a", 8) == make_store("a")


def test_a_store_without_a_digest_gets_that_of_the_next_vectors() -> None:
    """Stores of earlier releases have none."""
    old = make_store("")
    old.check_embedding("m", "a", 8)
    pinned = old.pin_embedding("m", "a", 8)

    assert pinned == make_store("a")
    assert pinned.pin_embedding("m", "", 8) == pinned  # from an engine without digests
    with pytest.raises(EmbeddingModelChanged):
        pinned.check_embedding("m", "b", 8)


@pytest.mark.parametrize("other", [("n", "a", 8), ("m", "b", 8), ("m", "a", 9), ("n", "", 8)])
def test_vectors_of_another_model_are_rejected(other: tuple[str, str, int]) -> None:
    """In searches and in ingestion."""
    store = make_store("a")

    for check in (store.check_embedding, store.pin_embedding):
        with pytest.raises(EmbeddingModelChanged):
            check(*other)
