"""Counts of waiting and running requests, for `GetLoad` and metrics."""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from inference_svc.engine.events import DiskCacheLoad, TierLoad
from inference_svc.engine_client.embedding_requests import PendingEmbedding
from inference_svc.engine_client.requests import ActiveSequence


class QueueLoad(NamedTuple):
    """One class's queue: requests, the tokens of their prompts, and the age of the oldest in
    seconds."""

    priority: int
    requests: int
    tokens: int
    oldest_s: float


class EmbeddingLoad(NamedTuple):
    """Embedding requests that wait or run, their inputs that have no vector yet, the tokens of
    those, and the age of the oldest request in seconds."""

    requests: int
    inputs: int
    tokens: int
    oldest_s: float


def queues(live: Iterable[ActiveSequence]) -> list[QueueLoad]:
    """The queues that are not empty, least urgent first."""
    classes: dict[int, list[ActiveSequence]] = defaultdict(list)
    for item in live:
        if item.is_waiting:
            classes[item.request.priority].append(item)
    now = time.monotonic()
    return [
        QueueLoad(
            priority,
            len(items),
            sum(len(item.request.prompt) for item in items),
            now - min(item.arrived_at for item in items),
        )
        for priority, items in sorted(classes.items())
    ]


def total(tiers: Iterable[TierLoad]) -> TierLoad:
    """What places of several engines keep together."""
    return TierLoad(*map(sum, zip(*tiers, strict=True)))


def disk_cache_load(loads: Sequence[DiskCacheLoad]) -> TierLoad:
    """The one archive of several engines: their counts, and the folder as it was seen last."""
    if not loads:
        return TierLoad()
    last = max(loads, key=lambda load: load.measured_at).tier
    return TierLoad(*last[:4], *total(load.tier for load in loads)[4:])


def embedding_load(jobs: Iterable[PendingEmbedding]) -> EmbeddingLoad:
    """What is left to embed."""
    every = list(jobs)
    left = [
        tokens
        for job in every
        for index, tokens in enumerate(job.request.inputs)
        if index not in job.vectors
    ]
    now = time.monotonic()
    oldest_s = now - min((job.arrived_at for job in every), default=now)
    return EmbeddingLoad(len(every), len(left), sum(map(len, left)), oldest_s)
