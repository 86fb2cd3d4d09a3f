"""A fake embedding model and a bench for the embedder."""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from inference_svc.engine.backend import DecodeError
from inference_svc.engine.batch import TokenBatch
from inference_svc.engine.embedder import Embedder
from inference_svc.engine.embedding_request import EmbeddingLimits, EmbeddingRequest, Vector
from inference_svc.engine.events import Embedded, Event
from tests.support.sequences import ManualClock

POISON = 666
"""A token whose batch cannot be decoded."""


class FakeEmbedding:
    """Stores the tokens of each slot, and raises AssertionError where llama.cpp would abort."""

    def __init__(self, **limits: Any) -> None:
        sizes = {"batch_tokens": 16, "input_tokens": 16, "sequences": 4, "cells": 16}
        self.limits = EmbeddingLimits(
            **{**sizes, "vector_size": 2, "vocabulary_size": 1000, **limits}
        )
        self.batches: list[list[int]] = []
        """Number of rows per slot in each decode."""
        self.slot_tokens: dict[int, list[int]] = {}

    def embed(self, batch: TokenBatch) -> Mapping[int, Vector]:
        """Return for each slot the mean and the last of its tokens in the batch."""
        vectors: dict[int, Vector] = {}
        for slot in np.unique(batch.slots).tolist():
            tokens = batch.tokens[batch.slots == slot]
            start = int(batch.positions[batch.slots == slot][0])
            previous = self.slot_tokens.setdefault(slot, [])
            if start != len(previous):
                raise AssertionError(f"slot {slot} has {len(previous)} tokens, not {start}")
            if previous and not self.limits.splits:
                raise AssertionError("an input was split into several decodes")
            previous.extend(tokens.tolist())
            vectors[slot] = np.array([tokens.mean(), tokens[-1]], np.float32)
        if sum(map(len, self.slot_tokens.values())) > self.limits.cells:
            raise AssertionError("too few cells")
        self.batches.append([int((batch.slots == slot).sum()) for slot in vectors])
        if POISON in batch.tokens:
            raise DecodeError(-3)
        return vectors

    def clear_slot(self, slot: int) -> None:
        self.slot_tokens.pop(slot, None)


def make_embedding(
    sequence_id: int = 0, *inputs: Sequence[int], **changes: Any
) -> EmbeddingRequest:
    token_lists = inputs or ((1, 2, 3),)
    return EmbeddingRequest(
        sequence_id, "m", tuple(array("i", tokens) for tokens in token_lists), **changes
    )


class EmbeddingBench:
    """An embedder on the fake model. Collects events."""

    def __init__(self, backend: FakeEmbedding | None = None, *, pack_tokens: int = 16) -> None:
        self.clock = ManualClock()
        self.backend = backend or FakeEmbedding()
        self.embedder = Embedder("m", self.backend, pack_tokens=pack_tokens, clock=self.clock)
        self.events: list[Event] = []

    def submit(self, *requests: EmbeddingRequest) -> None:
        for request in requests:
            self.embedder.submit(request)

    def step(self) -> list[Event]:
        events = self.embedder.step()
        self.events += events
        return events

    def run(self, limit: int = 1000) -> None:
        """Step until the embedder has no work."""
        for _ in range(limit):
            if not self.embedder.has_work:
                return
            self.step()
        raise AssertionError(f"the embedder still has work after {limit} steps")

    def vectors(self, sequence_id: int) -> list[list[float]]:
        """The vectors of a request, in the order of its inputs."""
        vectors = {e.input_index: e.vector.tolist() for e in self.embedded(sequence_id)}
        return [vector for _, vector in sorted(vectors.items())]

    def embedded(self, sequence_id: int) -> list[Embedded]:
        return [
            event
            for event in self.events
            if isinstance(event, Embedded) and event.sequence_id == sequence_id
        ]
