"""Tests of tracking embedding requests."""

import asyncio

import numpy as np
import pytest

from inference_svc.engine.embedding_request import EmbeddingRequest
from inference_svc.engine.events import Embedded
from inference_svc.engine_client.embedding_requests import EmbeddingTracker
from inference_svc.engine_client.queue_limits import QueueLimits

VECTOR = np.ones(2, np.float32)


@pytest.mark.parametrize("estimated", [(False, False), (True, False), (False, True)])
async def test_tokens_are_estimated_if_those_of_any_input_are(estimated: tuple[bool, bool]) -> None:
    submitted = asyncio.Event()
    tracker = EmbeddingTracker(QueueLimits(4, 1000, 1000), lambda _: submitted.set())
    running = asyncio.create_task(tracker.run(EmbeddingRequest(0, "m", texts=("a", "b"))))
    await submitted.wait()
    for index, is_estimated in enumerate(estimated):
        tracker.deliver(Embedded(0, "m", index, VECTOR, 3, index == 1, is_estimated))
    found = await running

    assert (found.num_tokens, found.is_estimated) == (6, any(estimated))
    assert len(found.vectors) == 2
