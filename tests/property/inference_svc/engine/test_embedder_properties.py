"""Embedding requests under random arrivals, cancellations and failed inputs."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_svc.engine.events import Cancelled, Embedded, Failed
from tests.support.embeddings import POISON, EmbeddingBench, FakeEmbedding, make_embedding

TOKENS = st.one_of(st.integers(1, 900), st.just(POISON))
INPUTS = st.lists(st.lists(TOKENS, min_size=1, max_size=16), min_size=1, max_size=6)
ARRIVALS = st.lists(
    st.tuples(INPUTS, st.sampled_from("ab"), st.integers(1, 3), st.integers(0, 3), st.booleans()),
    max_size=8,
)


@given(
    ARRIVALS, st.sampled_from([{}, {"splits": True}, {"splits": True, "averages": True}]),
    st.integers(1, 16),
)  # fmt: skip
def test_every_request_ends_once_and_with_its_own_vectors(
    arrivals: list[tuple[list[list[int]], str, int, int, bool]],
    options: dict[str, Any],
    pack_tokens: int,
) -> None:
    """Slots are empty at the end. The fake fails on batches that would abort a real context."""
    bench = EmbeddingBench(FakeEmbedding(**options), pack_tokens=pack_tokens)
    cancelled = set()
    for number, (inputs, project, priority, steps, is_cancelled) in enumerate(arrivals):
        bench.submit(make_embedding(number, *inputs, project=project, priority=priority))
        for _ in range(steps):
            bench.step()
        if is_cancelled:
            bench.embedder.cancel(number, arrived_in_step=0, step=1)
            cancelled.add(number)
    bench.run()
    bench.step()
    end_events = Counter(
        event.sequence_id
        for event in bench.events
        if isinstance(event, Failed | Cancelled) or (isinstance(event, Embedded) and event.is_last)
    )

    assert end_events == Counter(range(len(arrivals)))
    assert bench.backend.slot_tokens == {}
    failed = {e.sequence_id for e in bench.events if isinstance(e, Failed)}
    for number, (inputs, *_) in enumerate(arrivals):
        if any(POISON in tokens for tokens in inputs):
            assert number in failed | cancelled
        elif number not in cancelled:
            check_vectors(bench, number, inputs, options)


def check_vectors(
    bench: EmbeddingBench, number: int, inputs: list[list[int]], options: dict[str, Any]
) -> None:
    """Check that there is one vector per input, in order."""
    vectors = bench.vectors(number)
    assert len(vectors) == len(inputs)
    for vector, tokens in zip(vectors, inputs, strict=True):
        if options.get("averages") or not options:
            assert vector[0] == pytest.approx(sum(tokens) / len(tokens), rel=1e-4)
        if not options.get("averages"):
            assert vector[1] == tokens[-1]
