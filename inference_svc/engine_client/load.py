"""Counts of waiting and running requests, for `GetLoad` and for metrics."""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from inference_svc.engine.events import DiskCacheLoad, TierLoad
from inference_svc.engine_client.embedding_requests import PendingEmbedding
from inference_svc.engine_client.requests import ActiveSequence


class QueueLoad(NamedTuple):
    """The queue of one priority: requests, their prompt tokens, and the age of the oldest in
    seconds."""

    priority: int
    requests: int
    tokens: int
    oldest_s: float


class EmbeddingLoad(NamedTuple):
    """Embedding requests that wait or run, their inputs without a vector, the tokens of those
    inputs, and the age of the oldest request in seconds."""

    requests: int
    inputs: int
    tokens: int
    oldest_s: float


def queue_loads(live: Iterable[ActiveSequence]) -> list[QueueLoad]:
    """Return the queues that are not empty, lowest priority first."""
    waiting: dict[int, list[ActiveSequence]] = defaultdict(list)
    for item in live:
        if item.is_waiting:
            waiting[item.request.priority].append(item)
    now = time.monotonic()
    return [
        QueueLoad(
            priority,
            len(items),
            sum(item.request.num_prompt_tokens for item in items),
            now - min(item.arrived_at for item in items),
        )
        for priority, items in sorted(waiting.items())
    ]


def sum_tiers(tiers: Iterable[TierLoad]) -> TierLoad:
    """Add up the cache tiers of several engines."""
    return TierLoad(*map(sum, zip(*tiers, strict=True)))


def disk_cache_load(loads: Sequence[DiskCacheLoad]) -> TierLoad:
    """Merge the reports of engines about their shared disk prefix cache: the counters are added,
    the folder's content is that of the newest report."""
    if not loads:
        return TierLoad()
    newest = max(loads, key=lambda load: load.measured_at).tier
    return TierLoad(*newest[:4], *sum_tiers(load.tier for load in loads)[4:])


def embedding_load(live: Iterable[PendingEmbedding]) -> EmbeddingLoad:
    """Count the requests and inputs that are not embedded yet."""
    pending = list(live)
    remaining = [
        num_tokens
        for item in pending
        for index, num_tokens in enumerate(item.request.sizes)
        if index not in item.vectors
    ]
    now = time.monotonic()
    oldest_s = now - min((item.arrived_at for item in pending), default=now)
    return EmbeddingLoad(len(pending), len(remaining), sum(remaining), oldest_s)
