"""A model without weights for tests of what embeds: the vector of tokens is their mean and sum."""

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
    """Keeps the tokens of each slot as a context would; refuses what a context would abort on."""

    def __init__(self, **limits: Any) -> None:
        sizes = {"batch_tokens": 16, "input_tokens": 16, "sequences": 4, "cells": 16}
        self.limits = EmbeddingLimits(
            **{**sizes, "vector_size": 2, "vocabulary_size": 1000, **limits}
        )
        self.batches: list[list[int]] = []
        """The sizes of the rows of each decode."""
        self.held: dict[int, list[int]] = {}

    def embed(self, batch: TokenBatch) -> Mapping[int, Vector]:
        """The mean and the last token of each slot's part."""
        vectors: dict[int, Vector] = {}
        for slot in np.unique(batch.slots).tolist():
            tokens = batch.tokens[batch.slots == slot]
            start = int(batch.positions[batch.slots == slot][0])
            held = self.held.setdefault(slot, [])
            if start != len(held):
                raise AssertionError(f"slot {slot} holds {len(held)}, the part begins at {start}")
            if held and not self.limits.splits:
                raise AssertionError("an input was spread over decodes")
            held.extend(tokens.tolist())
            vectors[slot] = np.array([tokens.mean(), tokens[-1]], np.float32)
        if sum(map(len, self.held.values())) > self.limits.cells:
            raise AssertionError("the cells do not suffice")
        self.batches.append([int((batch.slots == slot).sum()) for slot in vectors])
        if POISON in batch.tokens:
            raise DecodeError(-3)
        return vectors

    def clear_slot(self, slot: int) -> None:
        """Empty a slot."""
        self.held.pop(slot, None)


def make_embedding(
    sequence_id: int = 0, *inputs: Sequence[int], **changes: Any
) -> EmbeddingRequest:
    """A request for vectors of token lists."""
    given = inputs or ((1, 2, 3),)
    return EmbeddingRequest(
        sequence_id, "m", tuple(array("i", tokens) for tokens in given), **changes
    )


class EmbeddingBench:
    """An embedder on the fake, with its events collected."""

    def __init__(self, backend: FakeEmbedding | None = None, *, pack_tokens: int = 16) -> None:
        self.clock = ManualClock()
        self.backend = backend or FakeEmbedding()
        self.embedder = Embedder("m", self.backend, pack_tokens=pack_tokens, clock=self.clock)
        self.events: list[Event] = []

    def submit(self, *requests: EmbeddingRequest) -> None:
        """Queue requests."""
        for request in requests:
            self.embedder.submit(request)

    def step(self) -> list[Event]:
        """One step."""
        events = self.embedder.step()
        self.events += events
        return events

    def run(self, limit: int = 1000) -> None:
        """Step until nothing is left."""
        for _ in range(limit):
            if not self.embedder.has_work:
                return
            self.step()
        raise AssertionError(f"not done after {limit} steps")

    def vectors(self, sequence_id: int) -> list[list[float]]:
        """The vectors of a request, in the order of its inputs."""
        found = {e.input_index: e.vector.tolist() for e in self.embedded(sequence_id)}
        return [vector for _, vector in sorted(found.items())]

    def embedded(self, sequence_id: int) -> list[Embedded]:
        """The events of a request."""
        return [
            event
            for event in self.events
            if isinstance(event, Embedded) and event.sequence_id == sequence_id
        ]
